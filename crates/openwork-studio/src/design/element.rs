//! What is known of one element: where it is, and which weights share its fate.

use super::tile::coordinate;
use super::{Design, matrix};
use crate::request::Response;
use openwork::spec::{Element, Spec, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum number of weights listed of a block, and of a scope.
const LISTED: usize = 512;

/// A cell of a panel.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ElementRequest {
    #[serde(flatten)]
    pub spec: super::SpecRequest,
    pub panel: usize,
    pub row: usize,
    pub col: usize,
}

/// Describes an element.
pub(crate) fn element(design: &Design, request: &ElementRequest) -> Result<Value, Response> {
    let Some((panel, spec, tensor)) = design.panel(request.panel) else {
        return Err(Response::error(404, format!("there is no panel {}", request.panel)));
    };
    let (rows, cols) = matrix(tensor);
    if request.row >= rows || request.col >= cols {
        return Err(Response::error(404, format!("the panel has {rows} rows and {cols} columns")));
    }
    let at = coordinate(tensor.padded_dims().unwrap_or(tensor.dims()), request.row, request.col);
    let real = at.iter().zip(tensor.dims()).all(|(i, dim)| i < dim);
    let offset = at.iter().zip(tensor.dims()).fold(0, |v, (i, dim)| v * dim + i);
    let block = match real {
        true => spec.locate(Element { tensor: panel.tensor, offset }),
        false => spec.locate_padded(panel.tensor, &at),
    };
    let names = tensor.axes();
    let view = tensor.coordinate(offset).filter(|_| real);
    let view = view.map(|at| {
        names.iter().zip(at).map(|(name, at)| json!({"axis": name, "at": at})).collect::<Vec<_>>()
    });
    let mut out = json!({
        "tensor": tensor.name(),
        "index": at,
        "row": request.row,
        "col": request.col,
        "offset": real.then_some(offset),
        "kind": match (real, block) { (false, _) => "padding", (_, None) => "outside", _ => "weight" },
        "view": view,
    });
    let Some((scope, number)) = block else { return Ok(out) };
    let kept = design.keeps(panel, spec).keeps(scope, number);
    let (_, index) = spec.block_index(scope, number);
    let mates: Vec<Element> = spec.elements(scope, number).take(LISTED + 1).collect();
    let others = (0..spec.blocks_per_scope()).flat_map(|block| spec.elements(scope, block));
    let members: Vec<Element> = others.take(LISTED + 1).collect();
    out["block"] = json!({
        "number": number,
        "index": index,
        "size": block_size(spec, number),
        "kept": kept,
        "cells": cells(spec, &mates),
        "complete": mates.len() <= LISTED,
    });
    out["scope"] = json!({
        "number": scope,
        "at": position(spec.scope_grid(), scope),
        "blocks": spec.blocks_per_scope(),
        "keep": spec.keep(),
        "cells": cells(spec, &members),
        "complete": members.len() <= LISTED,
    });
    Ok(out)
}

/// Weights of a block, those of all tensors together where blocks are coupled.
fn block_size(spec: &Spec, number: usize) -> usize {
    let sizes = spec.facts().block_sizes;
    match spec.coupling() {
        openwork::spec::Coupling::Blocks => sizes.iter().sum(),
        openwork::spec::Coupling::Scopes => {
            let mut left = number;
            for (tensor, size) in spec.tensors().iter().zip(&sizes) {
                let blocks: usize = tensor.scope_tile().iter().product();
                if left < blocks {
                    return *size;
                }
                left -= blocks;
            }
            0
        }
    }
}

/// `[tensor, row, col]` of each element.
fn cells(spec: &Spec, elements: &[Element]) -> Vec<[usize; 3]> {
    let place = |element: &Element| {
        let tensor: &Tensor = &spec.tensors()[element.tensor];
        let cols = tensor.dims()[usize::from(tensor.dims().len() > 1)..].iter().product::<usize>();
        [element.tensor, element.offset / cols, element.offset % cols]
    };
    elements.iter().take(LISTED).map(place).collect()
}

/// The row-major position `index` of a grid.
fn position(grid: &[usize], mut index: usize) -> Vec<usize> {
    let mut at = vec![0; grid.len()];
    for (at, &extent) in at.iter_mut().zip(grid).rev() {
        (*at, index) = (index % extent, index / extent);
    }
    at
}
