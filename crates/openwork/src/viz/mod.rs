//! Pictures of specs: as SVG, in a terminal, as a sheet of facts.
//!
//! A [`Scene`] is what any picture shows: for each tensor a window of cells,
//! the block and scope of each, which blocks an example keeps, and a colour for
//! each block. [`svg`] and [`terminal`] draw a scene, [`sheet`] says in words
//! and numbers what a spec means. All are pure: they return text.

mod fragment;
mod gallery;
mod legend;
mod notes;
mod panels;
mod pattern;
mod scene;
mod sheet;
mod svg;
mod terminal;

pub use fragment::{fragment_svg, fragment_terminal};
pub use gallery::{Example, GALLERY, Page, gallery};
pub use notes::{asked, densities, layout, memory, percent, tensor_density};
pub use pattern::svg;
pub use scene::{Cell, Panel, Scene};
pub use sheet::sheet;
pub use svg::escape_html;
pub use terminal::terminal;
