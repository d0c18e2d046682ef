//! Drawings: the facts of a design and the tiles that the page shows first, in one answer, so
//! that a key needs one round trip until its picture.
//!
//! ```text
//! length of the JSON (u32)   JSON   tile   tile ..
//! ```
//!
//! Each part starts at a multiple of 4 bytes. `tiles` of the JSON has the length of each tile,
//! or null where the design has no such panel.

use super::tile::{MAX_CELLS, Tile, tile};
use super::{Design, SpecRequest, facts};
use crate::request::Response;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::json;

/// Most tiles of a drawing, and most cells of them together.
const MAX_TILES: usize = 64;
const MAX_ALL_CELLS: usize = 2 * MAX_CELLS;

/// A design, and the tiles that its last version needed.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DrawingRequest {
    #[serde(flatten)]
    pub spec: SpecRequest,
    pub tiles: Vec<Tile>,
}

impl DrawingRequest {
    /// Refuses more than a screen shows.
    pub fn check(&self) -> Result<(), Response> {
        let cells = |tile: &Tile| tile.rows.saturating_mul(tile.cols);
        let all = self.tiles.iter().fold(0usize, |sum, tile| sum.saturating_add(cells(tile)));
        if self.tiles.len() > MAX_TILES || all > MAX_ALL_CELLS {
            let why = format!(
                "a drawing has at most {MAX_TILES} tiles and {MAX_ALL_CELLS} cells, found {} and {all}",
                self.tiles.len()
            );
            return Err(Response::error(400, why));
        }
        Ok(())
    }
}

/// The bytes of a drawing.
pub(crate) fn drawing(design: &Design, tiles: &[Tile]) -> Result<Vec<u8>, Response> {
    let drawn = tiles.par_iter().map(|one| match design.panel(one.panel) {
        Some(_) => tile(design, one).map(Some),
        None => Ok(None),
    });
    let drawn: Vec<Option<Vec<u8>>> = drawn.collect::<Result<_, Response>>()?;
    let mut head = facts(design);
    head["tiles"] = json!(drawn.iter().map(|tile| tile.as_ref().map(Vec::len)).collect::<Vec<_>>());
    let head = head.to_string();
    let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
    for part in std::iter::once(head.as_bytes()).chain(drawn.iter().flatten().map(Vec::as_slice)) {
        bytes.extend(part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    Ok(bytes)
}
