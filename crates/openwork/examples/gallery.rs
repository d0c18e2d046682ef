//! Writes the gallery of patterns: `cargo run -p openwork --example gallery`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::create_dir_all(docs.join("gallery"))?;
    for page in openwork::viz::gallery() {
        std::fs::write(docs.join(&page.path), &page.text)?;
    }
    Ok(())
}
