//! Fact sheets: what a spec means, in words and numbers.

use super::legend::wrapped;
use super::notes::{densities, layout, memory, percent, tensor_density, written_keep};
use crate::sparse::{Encoding, Packed, VALUE_KINDS};
use crate::spec::{Coupling, Spec, Tensor, level_name};

/// Widest line in characters.
const WIDTH: usize = 100;
/// Most densities that are listed one by one.
const LISTED: usize = 16;

/// The fact sheet of a spec, one name and text per line: expansion, views, blocks,
/// scopes, densities, storage, memory access.
pub fn sheet(spec: &Spec) -> String {
    let mut out = String::new();
    for (name, text) in facts(spec) {
        let indent = 13.max(name.len() + 1);
        for (i, line) in wrapped(&text, WIDTH - indent).iter().enumerate() {
            let name = if i == 0 { name.as_str() } else { "" };
            out.push_str(format!("{name:indent$}{line}").trim_end());
            out.push('\n');
        }
    }
    out
}

fn facts(spec: &Spec) -> Vec<(String, String)> {
    let mut facts = vec![("spec", spec.text().to_string())];
    if spec.text() != spec.expanded() {
        facts.push(("expands to", spec.expanded().to_string()));
    }
    if spec.has_levels() {
        let mut facts = named(facts);
        for (path, level) in spec.levels() {
            facts.push((level_name(&path), level.level_text().to_string()));
            facts.extend(named(level_facts(level)));
        }
        facts.extend(named(whole(spec)));
        return facts;
    }
    for tensor in spec.tensors() {
        facts.extend(tensor_facts(spec, tensor));
    }
    if spec.tensors().len() > 1 {
        let names: Vec<_> = spec.tensors().iter().map(Tensor::name).collect();
        let (last, first) = names.split_last().expect("there are two or more");
        let what = match spec.coupling() {
            Coupling::Blocks => {
                "blocks at the same position of the common grid are kept or pruned together"
            }
            Coupling::Scopes => "their blocks compete in shared scopes",
        };
        facts.push(("coupled", format!("{} and {last}: {what}", first.join(", "))));
    }
    facts.push(("scope", scope(spec)));
    facts.push(("keep", keep(spec)));
    facts.push(("density", density(spec)));
    facts.push(("densities", achievable(spec)));
    facts.extend(storage(spec));
    facts.extend(packed(spec));
    for (i, note) in memory(spec).into_iter().enumerate() {
        facts.push((if i == 0 { "memory" } else { "" }, note));
    }
    named(facts)
}

fn named(facts: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    facts.into_iter().map(|(name, text)| (name.to_string(), text)).collect()
}

/// The facts of one level of several.
fn level_facts(spec: &Spec) -> Vec<(&'static str, String)> {
    let mut facts = tensor_facts(spec, &spec.tensors()[0]);
    facts.push(("  scope", scope(spec)));
    facts.push(("  keep", format!("{}, {}", keep(spec), percent(spec.block_density()))));
    let bits = spec.facts();
    let (found, least) = (count(bits.index_bits, "bit"), bits.least_index_bits);
    facts.push(("  index", format!("{found} per scope (lower bound {least})")));
    facts
}

/// The facts of all levels together.
fn whole(spec: &Spec) -> Vec<(&'static str, String)> {
    let mut facts = vec![("whole", format!("density {}", density(spec)))];
    facts.extend(storage(spec).into_iter().skip(1));
    facts.extend(packed(spec));
    facts
}

fn keep(spec: &Spec) -> String {
    let kept = format!("{} of {} blocks in each scope", spec.keep(), spec.blocks_per_scope());
    written_keep(spec).map_or(kept.clone(), |keep| format!("{keep} = {kept}"))
}

fn density(spec: &Spec) -> String {
    let exact = spec.density_ratio().filter(|_| spec.has_levels());
    let exact = exact.map_or(String::new(), |ratio| format!(" = {ratio}"));
    let (kept, pruned) = (percent(spec.density()), percent(1.0 - spec.density()));
    let share = format!("{kept}{exact}, sparsity {pruned}");
    let whole = tensor_density(spec);
    if (whole - spec.density()).abs() < 1e-12 {
        share
    } else {
        let of = if spec.tensors().len() > 1 { "the tensors" } else { "the tensor" };
        format!("{share} in the domain; {} of all weights of {of} are kept", percent(whole))
    }
}

fn tensor_facts(spec: &Spec, tensor: &Tensor) -> Vec<(&'static str, String)> {
    let domain = match tensor.domain_size() {
        size if size == tensor.size() => String::new(),
        size => format!(", {size} of them in the domain"),
    };
    let padding = match tensor.positions() - tensor.domain_size() {
        0 => String::new(),
        padding => format!(", and {padding} padded positions"),
    };
    let name = match tensor.name() {
        "tensor" => String::new(),
        name => format!("{name} "),
    };
    let what = format!("{name}{}", tuple(tensor.dims()));
    let blocks = tensor.blocks();
    let identity = tensor.perm().iter().enumerate().all(|(k, &axis)| k == axis);
    let perm = if identity {
        String::new()
    } else {
        format!(", axes permuted by {}", tuple(tensor.perm()))
    };
    let mut facts = vec![
        ("tensor", format!("{what}, {}{domain}{padding}", count(tensor.size(), "weight"))),
        ("  view", view(tensor)),
        (
            "  block",
            format!(
                "{} = {}, grid {} = {}{perm}",
                tuple(blocks.tile()),
                count(blocks.tile_size(), "weight"),
                tuple(blocks.counts()),
                count(blocks.tiles(), "block")
            ),
        ),
    ];
    if spec.coupling() == Coupling::Scopes {
        let tile = tensor.scope_tile();
        let blocks = count(tile.iter().product(), "block");
        facts.push(("  scope", format!("{} = {blocks}", tuple(tile))));
    }
    facts
}

fn view(tensor: &Tensor) -> String {
    let shown = layout(tensor);
    tensor.composition().map_or(shown.clone(), |written| format!("{written} = {shown}"))
}

fn scope(spec: &Spec) -> String {
    let grid = format!("grid {} = {}", tuple(spec.scope_grid()), count(spec.scopes(), "scope"));
    let blocks = count(spec.blocks_per_scope(), "block");
    match spec.coupling() {
        Coupling::Blocks => format!("{} = {blocks}, {grid}", tuple(spec.tensors()[0].scope_tile())),
        Coupling::Scopes => format!("{blocks} from all tensors, {grid}"),
    }
}

fn achievable(spec: &Spec) -> String {
    match densities(spec, LISTED) {
        Some(all) => {
            let all: Vec<_> = all.into_iter().map(percent).collect();
            format!("{} with other values of keep", all.join(", "))
        }
        None => {
            let blocks = spec.blocks_per_scope();
            format!("k/{blocks} with keep k = 0 to {blocks}, {} apart", apart(blocks))
        }
    }
}

/// The step between densities, never printed as 0%.
fn apart(blocks: usize) -> String {
    match percent(1.0 / blocks as f64) {
        text if text == "0%" => "under 0.001%".to_string(),
        text => text,
    }
}

fn storage(spec: &Spec) -> Vec<(&'static str, String)> {
    let facts = spec.facts();
    let mut out = vec![(
        "index",
        format!(
            "{} per scope (lower bound {}), {} per kept weight",
            count(facts.index_bits, "bit"),
            facts.least_index_bits,
            bits(facts.index_bits_per_kept)
        ),
    )];
    for (i, storage) in facts.storage.iter().enumerate() {
        let text = format!(
            "{}-bit values: {} per weight, {} of dense, {:.2}x smaller",
            storage.value_bits,
            bits(storage.bits_per_weight),
            percent(storage.ratio),
            1.0 / storage.ratio
        );
        // With no kept weight there is no ratio.
        let text = if storage.ratio > 0.0 {
            text
        } else {
            format!("{}-bit values: nothing is kept", storage.value_bits)
        };
        out.push((if i == 0 { "storage" } else { "" }, text));
    }
    out
}

/// The packed format of each tensor, once if it is the same for all.
fn packed(spec: &Spec) -> Vec<(&'static str, String)> {
    let format = |tensor: usize| {
        let format = Packed::format_of(spec, tensor);
        match Packed::slow_because(spec, tensor) {
            Some(why) => format!("as `{}`; {why}", format.name),
            None => format!("as `{}`, with kernels for {}", format.name, format.kernels),
        }
    };
    let kinds = VALUE_KINDS.iter().map(|kind| {
        let group = Encoding::DEFAULT_GROUP;
        format!("{} {}", kind.name, bits(spec.facts().bits_per_weight(kind.bits_with_scale(group))))
    });
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let mut formats: Vec<String> = (0..spec.tensors().len()).map(format).collect();
    formats.dedup();
    formats.push(format!("per weight, with scales: {kinds}"));
    formats
        .into_iter()
        .enumerate()
        .map(|(i, text)| (if i == 0 { "packed" } else { "" }, text))
        .collect()
}

/// `(16,32)`.
fn tuple(values: &[usize]) -> String {
    let values: Vec<_> = values.iter().map(ToString::to_string).collect();
    format!("({})", values.join(","))
}

/// `1 block`, `2 blocks`.
fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `1 bit`, `0.5 bits`, with at most five decimals.
fn bits(bits: f64) -> String {
    let text = format!("{bits:.5}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} bit{}", if text == "1" { "" } else { "s" })
}
