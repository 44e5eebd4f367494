//! Clears away what killed test runs left: mounts, images, processes. `./test` calls it at its end.

fn main() {
    systx_e2e::lab::sweep();
}
