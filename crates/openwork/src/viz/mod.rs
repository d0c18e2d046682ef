//! Drawings of specs as SVG and terminal text, and fact sheets.
//!
//! A [`Scene`] holds what a drawing shows: for each tensor its first cells with
//! their blocks and scopes, the blocks that an example mask keeps, and a color
//! for each block. [`svg`] and [`terminal`] draw a scene, [`sheet`] describes a
//! spec in words and numbers. All of them are pure functions that return text.

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
pub use notes::{densities, layout, memory, percent, tensor_density, written_keep};
pub use pattern::svg;
pub use scene::{BlockId, Cell, Label, Panel, Scene, State};
pub use sheet::sheet;
pub use svg::escape_html;
pub use terminal::terminal;
