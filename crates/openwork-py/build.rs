//! An extension module is linked without Python's library; macOS must be told.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
