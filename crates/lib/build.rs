//! Names the shared library, so that what is linked with it asks for this interface by name.

fn main() {
    // With an incompatible change of `include/systx.h` the number rises; see docs/decisions/0038.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsystx.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
