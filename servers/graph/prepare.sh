# What ./test and the benchmark share.  To be sourced by bash.

graph_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../prepare.sh
. "$graph_here/../prepare.sh"
# With the rest of the project: so what the two have in common is compiled once.
graph_target=$(mkdir -p "${CARGO_TARGET_DIR:-$servers_top/target}" &&
    cd "${CARGO_TARGET_DIR:-$servers_top/target}" && pwd)

# build_graph PROFILE: systx and systx-graph, both into one directory, which is $SYSTX_BUILT then.
build_graph() {
    local how=()
    [ "$1" = debug ] || how=(--release)
    (cd "$servers_top" && cargo build -q "${how[@]}" --target-dir "$graph_target" -p systx \
        --bin systx) &&
        (cd "$graph_here" && cargo build -q --locked "${how[@]}" --target-dir "$graph_target") ||
        return 1
    SYSTX_BUILT=$graph_target/$1
    export SYSTX_BUILT
}
