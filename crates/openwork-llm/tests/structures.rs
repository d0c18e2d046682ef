//! Heads, channels and layers removed: the smaller model computes what the
//! masked one does.

use openwork::Matrix;
use openwork_llm::checkpoint::{Checkpoint, Dtype};
use openwork_llm::evaluate::{Bos, ScoredWindows, nats};
use openwork_llm::model::{LayerInfo, Model, NoTap, Storage};
use openwork_llm::pipeline::{
    Calibration, Evaluation, Job, LocalExecutor, Passes, PreparedRun, Recipe, Start, TensorFilter,
    depth, structure,
};
use openwork_llm::report::{Record, SizeChange};
use openwork_llm::shrink::{Removable, ShrinkPlan, Sizes, Uneven, shrink, write};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest difference of two logits, as a share of the largest: sums of fewer
/// terms are rounded otherwise.
const TOLERANCE: f32 = 2e-5;

const MODELS: &[&str] = &[
    "llama",
    "llama-tied",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3",
    "gemma2",
    "phi3",
    "smollm3",
    "granite",
    "glm4",
    "ministral3",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// Windows of tokens that any tiny model has.
fn calibration(samples: usize, seq_len: usize) -> Calibration {
    let token = |i: usize| ((i * i * 31 + i * 7 + 11) % 251) as u32;
    let windows =
        (0..samples).map(|w| (0..seq_len).map(|t| token(w * seq_len + t)).collect()).collect();
    Calibration {
        windows,
        single_tokens: Vec::new(),
        text: "numbers".to_string(),
        text_bytes: 0,
        seed: 7,
    }
}

fn logits(model: &Model<'_>, layers: &[usize]) -> Matrix {
    let mut hidden = model.embed(&calibration(2, 16).windows).unwrap();
    for &index in layers {
        model.layer(index, Storage::F32).unwrap().forward(&mut hidden, &mut NoTap);
    }
    model.head().unwrap().logits(hidden.states().view())
}

fn all_logits(folder: &Path) -> Matrix {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let model = Model::open(&checkpoint).unwrap();
    logits(&model, &(0..model.config().layers).collect::<Vec<_>>())
}

fn assert_close(got: &Matrix, want: &Matrix, what: &str) {
    let scale = want.data().iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let worst = got.data().iter().zip(want.data()).fold(0.0f32, |a, (x, y)| a.max((x - y).abs()));
    assert!(worst <= TOLERANCE * scale, "{what}: {worst} of {scale}");
}

/// Prunes a tiny model by a recipe.
fn prune(name: &str, recipe: &Recipe, out: &Path) {
    run_recipe(name, recipe, None, out, Start::Fresh).unwrap();
}

/// Runs all passes of a recipe on a tiny model, and evaluates.
fn run_all(name: &str, recipe: &str, out: &Path, start: Start) -> Result<Record, String> {
    let recipe = Recipe::parse(recipe).unwrap();
    let windows = calibration(3, 12).windows;
    let (words, bytes, tokens) = (1, 1, 3 * 11);
    let scored = ScoredWindows { windows, tokens, words, bytes, bos: Bos::None };
    run_recipe(
        name,
        &recipe,
        Some(Evaluation { text: "eval.txt".to_string(), scored, every: None }),
        out,
        start,
    )
}

fn run_recipe(
    name: &str,
    recipe: &Recipe,
    evaluation: Option<Evaluation>,
    out: &Path,
    start: Start,
) -> Result<Record, String> {
    let source = Checkpoint::open(&folder(name)).unwrap().rounded(Dtype::F32);
    let model = Model::open(&source).unwrap();
    let passes = Passes::new(recipe, &TensorFilter::default(), model.config(), true);
    let passes = passes.map_err(|error| error.to_string())?;
    let calibration = calibration(4, 16);
    let job = Job {
        calibration,
        evaluation,
        dtype: Dtype::F32,
        state_memory_limit: None,
        sentences: None,
        recovery: None,
        tasks: Vec::new(),
    };
    let run = PreparedRun::new(model, job, passes, out, start);
    run.run(&(), &mut LocalExecutor::default()).map_err(|error| error.to_string())
}

/// What a model can lose, beside channels: key heads, query heads of each, or both.
fn heads_of(name: &str) -> &'static str {
    match name {
        "llama" => "query-heads keep 2",
        "qwen3" => "heads keep 3",
        "qwen2" | "gemma3" => "heads keep 1",
        _ => "query-heads keep 50%",
    }
}

#[test]
fn the_smaller_model_computes_what_the_masked_one_does() {
    for name in MODELS {
        for method in ["magnitude", "s-obs"] {
            let recipe = Recipe::parse(&format!(
                "spec = 'mlp keep 75%'\nmethod = '{method}'\n[[rule]]\nspec = '{}'",
                heads_of(name)
            ))
            .unwrap();
            let masked = tempfile::tempdir().unwrap();
            prune(name, &recipe, masked.path());
            let source = Checkpoint::open(masked.path()).unwrap();
            let out = tempfile::tempdir().unwrap();
            let change = shrink(&source, out.path(), None, Uneven::Refuse).unwrap();
            assert_eq!(change.after.channels, 42, "{name}");
            assert!(change.after.heads < change.before.heads, "{name}");
            let small = Checkpoint::open(out.path()).unwrap();
            let model = Model::open(&small).unwrap();
            assert_eq!(Sizes::new(model.config()), change.after);
            let old = Model::open(&source).unwrap().config().clone();
            assert_eq!(model.config().head_dim, old.head_dim);
            for (new, old) in model.config().attention.iter().zip(&old.attention) {
                assert_eq!((new.window, &new.rope), (old.window, &old.rope), "{name}");
            }
            assert_close(
                &all_logits(out.path()),
                &all_logits(masked.path()),
                &format!("{name}, {method}"),
            );
        }
    }
}

#[test]
fn layers_that_are_left_out_are_passed_by() {
    for name in ["gemma3", "qwen2", "llama-tied"] {
        let source = Checkpoint::open(&folder(name)).unwrap();
        let model = Model::open(&source).unwrap();
        let kept: Vec<usize> = (0..model.config().layers).filter(|&i| i != 1).collect();
        let out = tempfile::tempdir().unwrap();
        write(&model, &ShrinkPlan::keep_layers(model.config(), &kept), None, out.path()).unwrap();
        assert_close(&all_logits(out.path()), &logits(&model, &kept), name);
    }
}

#[test]
fn whichever_layers_are_left_are_pruned_as_they_are() {
    // Sliding and global layers with other heads, delta nets, layers without experts.
    for name in ["gemma4", "qwen3.5", "qwen3-moe", "qwen2-moe", "gemma4-moe"] {
        let out = tempfile::tempdir().unwrap();
        let recipe =
            "[[pass]]\nspec = 'layers keep 1'\n[[pass]]\nspec = '2:4'\nmethod = 'magnitude'";
        let record = run_all(name, recipe, out.path(), Start::Fresh).unwrap();
        let written = Checkpoint::open(out.path()).unwrap();
        let model = Model::open(&written).unwrap();
        let info = LayerInfo::new(model.config(), 0);
        let linears: Vec<_> = record.layers[0].linears.iter().map(|l| (&l.name, l.shape)).collect();
        let names: Vec<String> = (0..info.linears.len()).map(|i| info.weight_name(i)).collect();
        let want: Vec<_> = names.iter().zip(info.linears.iter().map(|l| l.shape)).collect();
        assert_eq!(linears, want, "{name}");
        assert!(record.layers[0].linears.iter().all(|linear| linear.density <= 0.5), "{name}");
    }
}

#[test]
fn layers_that_differ_are_named() {
    let source = Checkpoint::open(&folder("mistral")).unwrap();
    let config = Model::open(&source).unwrap().config().clone();
    let spare = |channels: usize, heads: &[usize]| Removable {
        channels: BTreeMap::from([(None, (0..config.ff).map(|i| i < channels).collect())]),
        heads: (0..config.heads).map(|i| heads.contains(&i)).collect(),
    };
    let cut = |spares: &[Removable], uneven| ShrinkPlan::new(&config, spares, uneven);
    let uneven = [spare(14, &[]), spare(15, &[])];
    let why = cut(&uneven, Uneven::Refuse).unwrap_err().to_string();
    assert_eq!(
        why,
        "layers have different numbers of removable channels (14 in layer 0; 15 in layer 1), and config.json has one number for all; `openwork shrink --even` removes what every layer can: 56 to 42 channels"
    );
    let even = cut(&uneven, Uneven::Least).unwrap();
    assert_eq!(even.change.after.channels, 42);
    assert!(even.layers.iter().all(|layer| layer.channels[&None].len() == 42));
    // One of two groups whole, and one of each: nothing in common but one head each.
    let heads = [spare(0, &[0, 1]), spare(0, &[0, 3])];
    assert!(cut(&heads, Uneven::Refuse).unwrap_err().to_string().contains("query heads"));
    assert!(cut(&heads, Uneven::Least).unwrap_err().to_string().contains("no channel or head"));
    let heads = [spare(0, &[1, 2]), spare(0, &[0, 3])];
    let cut_heads = cut(&heads, Uneven::Refuse).unwrap();
    assert_eq!(cut_heads.layers[0].heads, [0, 3]);
    assert_eq!(cut_heads.layers[1].heads, [1, 2]);
    // Llama's class in transformers divides the hidden size by the heads, Mistral's does not.
    let llama = Checkpoint::open(&folder("llama")).unwrap();
    let llama = Model::open(&llama).unwrap().config().clone();
    let channels = BTreeMap::from([(None, vec![false; llama.ff])]);
    let one = Removable { channels, heads: vec![true, false, false, false] };
    let why = ShrinkPlan::new(&llama, &[one.clone(), one], Uneven::Refuse).unwrap_err().to_string();
    assert_eq!(
        why,
        "3 of 4 query heads would remain, and transformers loads a llama model only if their number divides hidden_size 32; possible: 1, 2"
    );
    // Something always stays.
    let all = [spare(56, &[0, 1, 2, 3]), spare(56, &[0, 1, 2, 3])];
    let left = cut(&all, Uneven::Least).unwrap().change.after;
    assert_eq!((left.channels, left.heads, left.kv_heads), (1, 1, 1));
}

#[test]
fn structures_are_specs_that_know_the_shapes() {
    let source = Checkpoint::open(&folder("mistral")).unwrap();
    let config = Model::open(&source).unwrap().config().clone();
    let info = LayerInfo::new(&config, 0);
    for (text, kept) in [
        ("mlp keep 75%", 42),
        ("mlp weight 1 keep 10 # ten", 10),
        ("heads keep 1", 1),
        ("heads weight 0.5 keep 40%", 1),
        ("query-heads keep 2", 1),
        ("query-heads keep 30%", 1),
    ] {
        let pattern = structure::pattern(text, &config).unwrap();
        let members = pattern.members();
        let tensors: Vec<(&str, &[usize])> = members
            .iter()
            .map(|name| (*name, &info.linears[info.find(name, None).unwrap()].shape[..]))
            .collect();
        assert_eq!(pattern.bind_all(&tensors).unwrap().keep(), kept, "{text}");
    }
    for (text, why) in [
        ("mlp keep 0", "`mlp keep 0`: that removes all 56 channels; keep at least 1"),
        ("mlp keep 57", "`mlp keep 57`: the model has 56 channels, fewer than 57"),
        ("heads keep 0%", "`heads keep 0%`: that removes all 2 key heads; keep at least 1"),
        (
            "query-heads keep 3",
            "`query-heads keep 3`: the 4 query heads form 2 groups that keep the same number each; give a multiple of 2",
        ),
        ("mlp", "`mlp`: it lacks a `keep`; write `mlp keep 75%`, or `mlp weight 1 keep 75%`"),
        (
            "heads keep",
            "`heads keep`: `keep` needs a value; write `heads keep 75%`, or `heads weight 1 keep 75%`",
        ),
        (
            "mlp keep 75% weight -1",
            "`mlp keep 75% weight -1`: weight -1 is not a number of at least 0",
        ),
        (
            "layers keep 1",
            "`layers keep 1`: layers are dropped by a recipe or a [[pass]] of its own, not by a rule",
        ),
    ] {
        let found = structure::pattern(text, &config).map(|p| p.to_string());
        assert_eq!(found.map_err(|error| error.to_string()), Err(why.to_string()), "{text}");
    }
    let qwen3 = Checkpoint::open(&folder("qwen3")).unwrap();
    let config = Model::open(&qwen3).unwrap().config().clone();
    let why = structure::pattern("query-heads keep 2", &config).unwrap_err().to_string();
    assert!(why.contains("use `heads` to remove both"), "{why}");
}

#[test]
fn a_coupling_is_within_a_layer_and_of_different_tensors() {
    let source = Checkpoint::open(&folder("llama")).unwrap();
    let config = Model::open(&source).unwrap().config().clone();
    let why = |spec: &str| {
        let recipe = Recipe::new(spec, "magnitude");
        Passes::new(&recipe, &TensorFilter::default(), &config, true).unwrap_err().to_string()
    };
    let other = why("blocks up_0: block (1,_) & up_1: block (1,_) keep 50%");
    assert!(other.contains("a coupling is within one layer, of q_proj,"), "{other}");
    let tied = why("blocks up: block (1,_) & up_proj: block (1,_) keep 50%");
    assert!(tied.contains("couples it with itself, as up_proj"), "{tied}");
}

#[test]
fn passes_read_what_the_one_before_left() {
    let recipe = "method = 's-obs'\n[[pass]]\nspec = 'layers keep 3'\n\
                  [[pass]]\nspec = 'mlp keep 50%'\nremove = true\n[[rule]]\nspec = 'heads keep 1'\n\
                  [[pass]]\nspec = '2:4'\nmethod = 'sparsegpt'";
    // The rule above belongs to the recipe, not to the pass.
    assert!(Recipe::parse(recipe).is_err());
    let recipe = recipe.replace("[[rule]]", "[[pass.rule]]");
    let out = tempfile::tempdir().unwrap();
    let record = run_all("gemma3", &recipe, out.path(), Start::Fresh).unwrap();
    let small = Checkpoint::open(out.path()).unwrap();
    let model = Model::open(&small).unwrap();
    let (expert_channels, shared_channels) = (0, 0);
    let sizes = Sizes {
        layers: 3,
        heads: 2,
        kv_heads: 1,
        channels: 28,
        experts: 0,
        expert_channels,
        shared_channels,
    };
    assert_eq!(Sizes::new(model.config()), sizes);
    assert_eq!(record.passes.len(), 3);
    assert_eq!(record.passes[0].dropped.len(), 1);
    assert_eq!(record.passes[2].after, sizes);
    assert_eq!(record.totals.density, 0.5);
    assert_eq!(record.layers[2].linears[4].shape, [28, 32]);
    assert_eq!(record.layers[2].linears[4].spec.as_deref(), Some("2:4"));
    // The record is on the disk, and the work is gone.
    let written = Record::read(out.path()).unwrap();
    assert_eq!((&written.spec, written.passes.len()), (&record.spec, 3));
    assert!(!out.path().join("openwork/work").exists());
    // The perplexity is that of the folder.
    let mut layer = |index| model.layer(index, Storage::F32);
    let found = nats(&model, &mut layer, &calibration(3, 12).windows, &mut |_| {}).unwrap();
    let said = record.last().unwrap().token_perplexity;
    assert!(((found / 33.0).exp() - said).abs() < 1e-9 * said);
    // The same again is there already; anything else is refused.
    let again = run_all("gemma3", &recipe, out.path(), Start::Resume).unwrap();
    assert_eq!(again, written);
    let other = recipe.replace("50%", "16");
    let why = run_all("gemma3", &other, out.path(), Start::Resume).unwrap_err();
    assert!(why.contains("the passes of the recipe changed"), "{why}");
    run_all("gemma3", &other, out.path(), Start::Force).unwrap();
    let small = Checkpoint::open(out.path()).unwrap();
    assert_eq!(Model::open(&small).unwrap().config().ff, 16);
}

#[test]
fn what_is_removed_is_dense_in_the_record() {
    let out = tempfile::tempdir().unwrap();
    let recipe = "spec = 'mlp keep 75%'\nmethod = 's-obd'\nremove = true";
    let record = run_all("llama-tied", recipe, out.path(), Start::Fresh).unwrap();
    assert!(record.passes[0].spec.starts_with("blocks gate weight"), "{}", record.spec);
    assert_eq!(record.spec_as_written(), "mlp keep 75%");
    let SizeChange { before, after } = record.sizes.unwrap();
    // Two layers lose 14 channels of three linears, 32 wide, and of two biases.
    assert_eq!(before.parameters - after.parameters, 2 * 14 * (3 * 32 + 2));
    assert_eq!(after.bytes, 4 * after.parameters);
    let down = &record.layers[0].linears[6];
    assert_eq!((down.shape, down.density, &down.spec), ([32, 42], 1.0, &None));
    assert!(down.error > 0.0 && down.notes.last().unwrap().starts_with("was 32 x 56 before"));
    assert_eq!(record.totals.density, 1.0);
    let card = std::fs::read_to_string(out.path().join("README.md")).unwrap();
    assert!(card.contains("56 to 42 channels"), "{card}");
}

#[test]
fn passes_that_cannot_be_run_are_refused_before_anything_is() {
    let why = |recipe: &str| {
        let out = tempfile::tempdir().unwrap();
        let why = run_all("mistral", recipe, out.path(), Start::Fresh).unwrap_err();
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
        why
    };
    let nothing = why("spec = '2:4'\nremove = true");
    assert!(nothing.starts_with("no channel or head can be removed from every layer"), "{nothing}");
    let uneven =
        why("spec = 'mlp keep 50%'\nremove = true\n[[rule]]\nlayers = '1'\nspec = 'mlp keep 75%'");
    assert!(uneven.contains("(28 in layer 0; 14 in layer 1)"), "{uneven}");
    let all = why("[[pass]]\nspec='layers keep 0'");
    assert!(all.contains("that removes all 2 layers; keep at least 1"), "{all}");
    // The second pass sees the shapes that the first leaves: 56 to 42 channels, no multiple of 8.
    let shapes = why("[[pass]]\nspec='mlp keep 75%'\nremove=true\n[[pass]]\nspec='block(1,8)'");
    assert!(shapes.starts_with("[[pass]] 2: the plan does not fit"), "{shapes}");
    let rules = why("spec='layers keep 1'\n[[rule]]\nlayers='0'\nspec='2:4'");
    assert!(rules.contains("a pass that drops layers or experts does nothing else"), "{rules}");
    let budget = why("spec='mlp keep 50%'\nremove=true\n[budget]\ndensity=0.5");
    assert!(budget.contains("remove and [budget] cannot be combined"), "{budget}");
}

#[test]
fn the_layer_with_the_least_effect_goes_first() {
    let source = Checkpoint::open(&folder("gemma3")).unwrap();
    let model = Model::open(&source).unwrap();
    let calibration = calibration(4, 16);
    let all: Vec<usize> = (0..4).collect();
    let effects = depth::effects(&model, &calibration, &all, &|_, _| Ok(())).unwrap();
    let least = (0..4).min_by(|&a, &b| effects[a].total_cmp(&effects[b])).unwrap();
    let kept = depth::choose(&model, &calibration, 3, &|_, _| Ok(())).unwrap();
    assert!(!kept.contains(&least) && kept.len() == 3, "{effects:?}: {kept:?}");
    // By hand: one token's states through the first layer.
    let mut hidden = model.embed(&calibration.windows).unwrap();
    let before = hidden.states().clone();
    model.layer(0, Storage::F32).unwrap().forward(&mut hidden, &mut NoTap);
    let cosine = |i: usize| {
        let (x, y) = (before.row(i), hidden.states().row(i));
        let dot =
            |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum() };
        dot(x, y) / (dot(x, x).sqrt() * dot(y, y).sqrt())
    };
    let mean = (0..before.rows()).map(|i| 1.0 - cosine(i)).sum::<f64>() / before.rows() as f64;
    assert!((mean - effects[0]).abs() < 1e-5, "{mean} {}", effects[0]);
}
