//! The gallery in `docs/` is what the command would write today.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_gallery_is_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = openwork::viz::gallery();
    for page in &pages {
        let found = std::fs::read_to_string(docs.join(&page.path)).unwrap_or_default();
        assert!(
            found.replace("\r\n", "\n") == page.text,
            "docs/{} is not current; run `cargo run -p openwork --example gallery`",
            page.path
        );
    }
    let wanted: BTreeSet<_> = pages.iter().map(|page| docs.join(&page.path)).collect();
    for file in std::fs::read_dir(docs.join("gallery")).unwrap() {
        let path = file.unwrap().path();
        assert!(wanted.contains(&path), "{} belongs to no pattern", path.display());
    }
}
