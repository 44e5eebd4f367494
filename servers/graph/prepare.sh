# What ./test and the benchmark share.  To be sourced by bash.

graph_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
graph_top=$(cd "$graph_here/../.." && pwd)
# With the rest of the project: so what the two have in common is compiled once.
graph_target=$(mkdir -p "${CARGO_TARGET_DIR:-$graph_top/target}" &&
    cd "${CARGO_TARGET_DIR:-$graph_top/target}" && pwd)

# in_a_box COMMAND...: with namespaces of its own, so that no process and no mount is left of it,
# however it ends.
in_a_box() {
    unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$@"
}

# build_graph PROFILE: systx and systx-graph, both into one directory, which is $SYSTX_BUILT then.
build_graph() {
    local how=()
    [ "$1" = debug ] || how=(--release)
    (cd "$graph_top" && cargo build -q "${how[@]}" --target-dir "$graph_target" -p systx \
        --bin systx) &&
        (cd "$graph_here" && cargo build -q --locked "${how[@]}" --target-dir "$graph_target") ||
        return 1
    SYSTX_BUILT=$graph_target/$1
    export SYSTX_BUILT
}
