//! The routes of the page, each a function of the studio and a request.

use crate::design::{
    self, Design, DesignError, DrawingRequest, ElementRequest, SpecRequest, TileRequest,
    export_page, snippets,
};
use crate::request::{Request, Response};
use crate::{Studio, page, trial};
use openwork::fragment::{self, Fragment};
use openwork::prune::{DEFAULT_METHOD, METHODS, MODIFIERS, Needs};
use openwork::spec::{Edit, EditTarget, PRESETS, Side};
use openwork::viz::{self, GALLERY};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

mod layouts;

/// A route of the API.
pub struct Route {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The path.
    pub path: &'static str,
    /// One line on what it answers.
    pub summary: &'static str,
    run: fn(&Studio, &Request<'_>) -> Result<Response, Response>,
}

macro_rules! route {
    ($method:literal, $path:literal, $summary:literal, $run:expr) => {
        Route { method: $method, path: $path, summary: $summary, run: $run }
    };
}

/// Every route of the API. To add one, write its function and list it here.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    route!("GET", "/api/catalog", "presets, examples, clauses, methods, layout operations", catalog),
    route!("POST", "/api/show", "the facts of a spec, or where it is wrong", show),
    route!("POST", "/api/draw", "the same with the tiles that are seen first, as bytes", draw),
    route!("POST", "/api/tile", "cells of a rectangle, as bytes", tile),
    route!("POST", "/api/element", "one element: block, scope, coordinates, other weights of the block", element),
    route!("POST", "/api/edit", "the spec with one clause changed", edit),
    route!("POST", "/api/fragment", "the spec on a tensor core fragment", fragment),
    route!("POST", "/api/fragment.svg", "the drawing of that", fragment_svg),
    route!("POST", "/api/svg", "the drawing of a spec", svg),
    route!("POST", "/api/share", "the spec as command, recipe, Python and Rust", share),
    route!("POST", "/api/export", "the spec as a page of its own", export),
    route!("POST", "/api/layout", "an operation of the layout algebra, with grids", layouts::layout),
    route!("GET", "/api/sources", "tensors that patterns can be tried on", trial::sources),
    route!("POST", "/api/trial", "starts a trial", trial::start),
    route!("POST", "/api/trial/status", "progress and results of a trial", trial::status),
    route!("POST", "/api/trial/cancel", "cancels a trial", trial::cancel),
    route!("POST", "/api/trial/mask", "the mask of a result, as bytes", trial::mask),
    route!("GET", "/api/runs", "runs below the folder", crate::runs::list),
    route!("GET", "/api/run", "one run: layers, perplexities, how to resume", crate::runs::one),
    route!("GET", "/report", "the report page of a finished run", crate::runs::report),
];

/// Finds and runs the route of a request.
pub(crate) fn route(studio: &Studio, request: &Request<'_>) -> Response {
    if request.method == "GET"
        && let Some(file) = page::file(request)
    {
        return file;
    }
    match ROUTES.iter().find(|route| route.path == request.path) {
        Some(route) if route.method == request.method => {
            (route.run)(studio, request).unwrap_or_else(|refusal| refusal)
        }
        Some(route) => {
            Response::error(405, format!("use {}", route.method)).with("Allow", route.method)
        }
        None => Response::error(404, "there is no such page"),
    }
}

fn design_of(studio: &Studio, request: &SpecRequest) -> Result<Arc<Design>, Response> {
    studio.designs.get(request).map_err(|error| refused(&error))
}

/// A spec that the page has sent before, or should have checked.
fn refused(error: &DesignError) -> Response {
    Response { status: 422, ..Response::json(&json!({"error": error.to_json()})) }
}

fn show(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: SpecRequest = request.json()?;
    // An error while typing is an answer like any other.
    Ok(Response::json(&match studio.designs.get(&request) {
        Ok(design) => design::facts(&design),
        Err(error) => json!({"error": error.to_json()}),
    }))
}

fn draw(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: DrawingRequest = request.json()?;
    request.check()?;
    Ok(match studio.designs.get(&request.spec) {
        Ok(design) => Response::bytes(design::drawing(&design, &request.tiles)?),
        Err(error) => Response::json(&json!({"error": error.to_json()})),
    })
}

fn tile(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: TileRequest = request.json()?;
    let design = design_of(studio, &request.spec)?;
    Ok(Response::bytes(design::tile(&design, &request.tile)?))
}

fn element(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: ElementRequest = request.json()?;
    let design = design_of(studio, &request.spec)?;
    Ok(Response::json(&design::element(&design, &request)?))
}

/// A change of one clause.
#[derive(Clone, Debug, Deserialize)]
struct EditRequest {
    #[serde(flatten)]
    spec: SpecRequest,
    panel: usize,
    edit: EditKind,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EditKind {
    MoveAxis { from: usize, to: usize },
    Block { axis: usize, extent: usize },
    Scope { axis: usize, extent: usize },
    Keep { count: usize },
}

fn edit(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: EditRequest = request.json()?;
    let design = design_of(studio, &request.spec)?;
    let Some((panel, ..)) = design.panel(request.panel) else {
        return Err(Response::error(404, format!("there is no panel {}", request.panel)));
    };
    let edit = match request.edit {
        EditKind::MoveAxis { from, to } => Edit::MoveAxis { from, to },
        EditKind::Block { axis, extent } => Edit::Block { axis, extent },
        EditKind::Scope { axis, extent } => Edit::Scope { axis, extent },
        EditKind::Keep { count } => Edit::Keep(count),
    };
    let path: Vec<Side> = panel.path.clone();
    let place = EditTarget { level: &path, tensor: panel.tensor };
    match design.pattern.edited(&design.tensors(), place, edit) {
        Ok(pattern) => Ok(Response::json(&json!({"spec": pattern.to_string()}))),
        Err(error) => {
            let text = request.spec.spec.clone();
            Err(refused(&DesignError::Spec(Box::new(error), text)))
        }
    }
}

fn fragment_of(
    studio: &Studio,
    request: &Request<'_>,
) -> Result<(Arc<Design>, Fragment), Response> {
    let request: SpecRequest = request.json()?;
    let design = design_of(studio, &request)?;
    let found = Fragment::new(&design.spec, fragment::NAME, request.seed);
    let found = found.map_err(|error| Response::error(422, error.to_string()))?;
    Ok((design, found))
}

fn fragment(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let (_, found) = fragment_of(studio, request)?;
    Ok(Response::json(&openwork_llm::fragment_json(&found)))
}

fn fragment_svg(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let (design, found) = fragment_of(studio, request)?;
    Ok(Response::text("image/svg+xml", viz::fragment_svg(&design.spec, &found)))
}

fn svg(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let request: SpecRequest = request.json()?;
    let design = design_of(studio, &request)?;
    Ok(Response::text("image/svg+xml", viz::svg(&design.spec, request.seed)))
}

fn share(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let design = design_of(studio, &request.json()?)?;
    Ok(Response::json(&snippets(&design)))
}

fn export(studio: &Studio, request: &Request<'_>) -> Result<Response, Response> {
    let design = design_of(studio, &request.json()?)?;
    Ok(Response::text("text/plain; charset=utf-8", export_page(&design)))
}

/// The clauses of the language, with what each means.
const CLAUSES: &[(&str, &str, &str)] = &[
    (
        "view",
        "view m (g j i) -> m g i j, j=2 i=8",
        "splits and reorders the axes; block, scope and keep then count along its axes",
    ),
    (
        "block",
        "block (1,2)",
        "weights that are kept or dropped together: one extent for each axis of the view",
    ),
    ("scope", "scope (1,4)", "blocks that compete, counted in blocks along each axis"),
    (
        "keep",
        "keep 2",
        "how many blocks of each scope are kept: a count, a share such as 50%, or all",
    ),
    (
        "in",
        "in (M/4,0)+(M*3/4,K)",
        "only this part of the tensor is pruned: offset + extent, a layout, a union | or a complement ~",
    ),
    ("pad", "pad (1,4)", "rounds each axis up to a multiple with virtual zeros"),
    ("on", "on (rows,cols)", "names the dims of the tensor"),
    ("then", "then 2:4", "prunes the kept blocks further"),
    ("else", "else 2:4", "prunes the dropped blocks instead of zeroing them"),
    (
        "blocks",
        "blocks a: block (1,_) & b: block (1,_) keep 50%",
        "couples tensors: blocks at the same place are kept or dropped together",
    ),
    (
        "scopes",
        "scopes a: scope (1,_) & b: scope (1,_) keep 50%",
        "couples tensors: their blocks compete",
    ),
    ("perm", "perm (1,0)", "which axis of a coupled tensor each axis of the common grid is"),
    ("weight", "weight 0.5", "the weight of a coupled tensor's loss"),
    ("all", "keep all", "every block"),
];

fn catalog(_: &Studio, _: &Request<'_>) -> Result<Response, Response> {
    let dims = |dims: &[usize]| dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let presets: Vec<Value> = PRESETS
        .iter()
        .map(|preset| {
            json!({
                "name": preset.name, "summary": preset.summary, "spec": preset.example,
                "shapes": [dims(preset.shape)],
            })
        })
        .collect();
    let examples: Vec<Value> = GALLERY
        .iter()
        .map(|example| {
            let shape = |(name, shape): &(&str, &[usize])| match *name {
                "tensor" => dims(shape),
                name => format!("{name}={}", dims(shape)),
            };
            json!({
                "name": example.name, "summary": example.summary, "spec": example.text,
                "shapes": example.tensors.iter().map(shape).collect::<Vec<_>>(),
            })
        })
        .collect();
    let method = |info: &openwork::prune::MethodInfo| {
        let parsed: Option<openwork::prune::Method> = info.name.parse().ok();
        json!({
            "name": info.name, "summary": info.summary,
            "needs_inputs": parsed.is_some_and(|method| method.needs() != Needs::Weights),
        })
    };
    let clauses = CLAUSES
        .iter()
        .map(|(name, example, hint)| json!({"name": name, "example": example, "hint": hint}));
    Ok(Response::json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "presets": presets,
        "examples": examples,
        "clauses": clauses.collect::<Vec<_>>(),
        "methods": METHODS.iter().map(method).collect::<Vec<_>>(),
        "modifiers": MODIFIERS.iter().map(|info| json!({"name": info.name, "summary": info.summary})).collect::<Vec<_>>(),
        "default_method": DEFAULT_METHOD,
        "layout_operations": layouts::operations(),
        "fragment": fragment::NAME,
    })))
}
