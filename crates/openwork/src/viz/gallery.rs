//! The gallery: every preset and some patterns written out, with pictures.

use super::{pattern, sheet};
use crate::spec::{PRESETS, Pattern, Spec};

/// A pattern written out that the gallery shows beside the presets.
#[derive(Debug)]
pub struct Example {
    /// The name of its picture.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// The pattern.
    pub text: &'static str,
    /// The tensors that it is shown on.
    pub tensors: &'static [(&'static str, &'static [usize])],
}

/// Patterns that no preset names.
pub const GALLERY: &[Example] = &[
    Example {
        name: "dense-quarter",
        summary: "the first quarter of the rows stays dense, 2:4 in the rest",
        text: "2:4 in (M/4,0)+(M*3/4,K)",
        tensors: &[("tensor", &[8, 16])],
    },
    Example {
        name: "padded",
        summary: "2:4 on ten columns: the last scope is filled up with two virtual zeros",
        text: "2:4 pad (1,4)",
        tensors: &[("tensor", &[4, 10])],
    },
    Example {
        name: "diagonal",
        summary: "only the blocks on the diagonal are pruned: a strided domain with a start",
        text: "in (4,4,4):(68,16,1) block (1,1,2) scope (1,1,2) keep 1",
        tensors: &[("tensor", &[16, 16])],
    },
    Example {
        name: "frame",
        summary: "two corners stay dense: the complement of a union, taken in rising order",
        text: "in ~((0,0)+(4,8) | (4,8)+(4,8)) scope (4) keep 2",
        tensors: &[("tensor", &[8, 16])],
    },
    Example {
        name: "venom-columns",
        summary: "the first stage of VENOM's V:N:M: 4 of 8 columns for every 4 rows",
        text: "block (4,1) scope (1,8) keep 4",
        tensors: &[("tensor", &[8, 32])],
    },
    Example {
        name: "shared-rows",
        summary: "rows 8 apart share one mask (in rows16 they compete)",
        text: "view (t r p) k -> t p r k, r=2 p=8 block (1,1,2,8) scope (1,1,1,_) keep 2",
        tensors: &[("tensor", &[16, 32])],
    },
    Example {
        name: "heads",
        summary: "whole attention heads: rows of q, k and v and columns of o, decided together",
        text: "blocks q: head(h=4) & k: head(h=4) & v: head(h=4) \
               & o perm (1,0,2): view k (h d) -> k h d, h=4 block (_,1,_) scope (_,1,1) keep 50%",
        tensors: &[("q", &[16, 12]), ("k", &[16, 12]), ("v", &[16, 12]), ("o", &[12, 16])],
    },
    Example {
        name: "neurons",
        summary: "hidden neurons of a gated MLP: rows of gate and up, columns of down",
        text: "blocks gate: block (1,_) & up: block (1,_) & down perm (1,0): block (_,1) \
               scope (4,1) keep 2",
        tensors: &[("gate", &[16, 8]), ("up", &[16, 8]), ("down", &[8, 16])],
    },
    Example {
        name: "compete",
        summary: "two tensors compete for one budget in each row",
        text: "scopes a: block (1,2) scope (1,_) & b: block (1,4) scope (1,_) keep 50%",
        tensors: &[("a", &[6, 12]), ("b", &[6, 16])],
    },
];

/// A file of the gallery.
#[derive(Debug)]
pub struct Page {
    /// Its path below the folder of documents.
    pub path: String,
    /// What it holds.
    pub text: String,
}

/// All files of the gallery: `gallery.md` and a picture for each pattern.
pub fn gallery() -> Vec<Page> {
    let mut page = String::from(
        "# Gallery\n\n\
         Every preset on a small tensor, then patterns that no preset names. In each picture the \
         upper panel is the structure: a colour is a block, which stays or goes whole; an outline \
         with a number is a scope, in which blocks compete; hatching lies outside the domain. The \
         lower panel is an example mask: dark weights are pruned.\n\n\
         Made by `cargo run -p openwork --example gallery`; a test checks that it is current. \
         `openwork show SPEC --shape 16,32 --svg FILE` draws any other.\n\n## Presets\n",
    );
    let mut pages = Vec::new();
    for preset in PRESETS {
        let spec = bound(preset.example, &[("tensor", preset.shape)]);
        entry(&mut page, &mut pages, preset.name, &file_name(preset.name), preset.summary, &spec);
    }
    page.push_str("\n## Written out\n");
    for example in GALLERY {
        let spec = bound(example.text, example.tensors);
        entry(&mut page, &mut pages, example.name, example.name, example.summary, &spec);
    }
    pages.push(Page { path: "gallery.md".to_string(), text: page });
    pages
}

fn bound(text: &str, tensors: &[(&str, &[usize])]) -> Spec {
    let pattern: Pattern = text.parse().unwrap_or_else(|error| panic!("{error}"));
    pattern.bind_all(tensors).unwrap_or_else(|error| panic!("{error}"))
}

/// The name of a preset's picture: `N:M@D` is `n-m-at-d`.
fn file_name(preset: &str) -> String {
    let name = preset.split('(').next().unwrap_or(preset);
    name.replace(':', "-").replace('@', "-at-").to_lowercase()
}

fn entry(
    page: &mut String,
    pages: &mut Vec<Page>,
    title: &str,
    file: &str,
    summary: &str,
    spec: &Spec,
) {
    page.push_str(&format!(
        "\n### `{title}`\n\n{}.\n\n![{}](gallery/{file}.svg)\n\n```text\n{}```\n",
        capitalised(summary),
        summary.replace(['[', ']'], ""),
        sheet(spec)
    ));
    pages.push(Page { path: format!("gallery/{file}.svg"), text: pattern::svg(spec, 1) });
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
