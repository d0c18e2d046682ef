//! The run against its definition, written as plainly as can be.

use openwork::hessian::HessianSum;
use openwork::prune::{Method, Task, prune};
use openwork::{MatrixRef, Pattern};
use openwork_llm::checkpoint::{Checkpoint, Dtype};
use openwork_llm::model::{Hidden, Layer, LayerInfo, Model, NoTap, Site, Storage, Tap};
use openwork_llm::pipeline::{
    Budget, Calibration, Job, LocalExecutor, Passes, PipelineError, PreparedRun, Recipe, Rule,
    Sampling, Start, TensorFilter,
};
use openwork_llm::report::Record;
use std::path::{Path, PathBuf};

fn model(name: &str) -> PathBuf {
    Path::new("../../testdata/models").join(name)
}

/// Windows of tokens that any tiny model has, and starts.
fn calibration(samples: usize, seq_len: usize) -> Calibration {
    let token = |i: usize| ((i * i * 31 + i * 7 + 11) % 251) as u32;
    let windows =
        (0..samples).map(|w| (0..seq_len).map(|t| token(w * seq_len + t)).collect()).collect();
    let single_tokens = (0..samples).map(|i| vec![token(i + 1000)]).collect();
    Calibration { windows, single_tokens, text: "numbers".to_string(), text_bytes: 0, seed: 7 }
}

struct Inputs(Site, HessianSum);

impl Tap for Inputs {
    fn on_input(&mut self, site: Site, inputs: MatrixRef<'_>) {
        if site == self.0 {
            self.1.add(inputs).unwrap();
        }
    }
}

fn hessian(
    layer: &Layer,
    chunks: &[Hidden],
    site: Site,
    width: usize,
) -> openwork::hessian::Hessian {
    let mut total = HessianSum::new(width);
    for hidden in chunks {
        let mut tap = Inputs(site, HessianSum::starting_at(width, total.samples()));
        let mut copy = hidden.copy();
        layer.forward(&mut copy, &mut tap);
        total.merge(tap.1).unwrap();
    }
    total.finish().unwrap()
}

/// The definition: every site's inputs with all that comes before it pruned, or
/// with the dense layer; then the pruned layer takes the states along.
fn by_hand(
    source: &Checkpoint,
    calibration: &Calibration,
    method: &str,
    sequential: bool,
) -> Vec<Vec<f32>> {
    let model = Model::open(source).unwrap();
    let method: Method = method.parse().unwrap();
    let pattern: Pattern = "2:4".parse().unwrap();
    let windows = [&calibration.windows, &calibration.single_tokens];
    let mut chunks = windows.map(|windows| model.embed(windows).unwrap());
    let mut all = Vec::new();
    for index in 0..model.config().layers {
        let dense = model.layer(index, Storage::F32).unwrap();
        let mut layer = model.layer(index, Storage::F32).unwrap();
        for site in dense.info().sites() {
            let seen = if sequential { &layer } else { &dense };
            let h = hessian(seen, &chunks, site, dense.info().width(site));
            let reads = |i: &usize| dense.linears()[*i].site() == site;
            for i in (0..dense.linears().len()).filter(reads) {
                let w = dense.linears()[i].matrix().unwrap();
                let spec = pattern.bind(&[w.rows(), w.cols()]).unwrap();
                let mut new = prune(&method, &Task::one(&spec, w.data(), Some(&h))).unwrap();
                Dtype::BF16.round(new.weights[0].data_mut());
                *layer.linears_mut()[i].matrix_mut().unwrap() = new.weights.remove(0);
            }
        }
        chunks.iter_mut().for_each(|hidden| layer.forward(hidden, &mut NoTap));
        all.extend(layer.linears().iter().map(|l| l.matrix().unwrap().data().to_vec()));
    }
    all
}

fn job(calibration: &Calibration) -> Job {
    let calibration = calibration.clone();
    Job {
        calibration,
        evaluation: None,
        dtype: Dtype::BF16,
        state_memory_limit: None,
        sentences: None,
        recovery: None,
        tasks: Vec::new(),
    }
}

/// Runs a recipe of one pass.
fn run(
    source: &Checkpoint,
    recipe: &Recipe,
    job: Job,
    sequential: bool,
    out: &Path,
) -> Result<Record, PipelineError> {
    let model = Model::open(source)?;
    let passes = Passes::new(recipe, &TensorFilter::default(), model.config(), sequential)?;
    PreparedRun::new(model, job, passes, out, Start::Fresh).run(&(), &mut LocalExecutor::default())
}

fn names(info: &LayerInfo) -> Vec<String> {
    (0..info.linears.len()).map(|i| info.weight_name(i)).collect()
}

fn weights(folder: &Path) -> Vec<Vec<f32>> {
    let written = Checkpoint::open(folder).unwrap();
    let config = Model::open(&written).unwrap().config().clone();
    (0..config.layers)
        .flat_map(|layer| names(&LayerInfo::new(&config, layer)))
        .map(|name| written.tensor(&name).unwrap().to_f32())
        .collect()
}

#[test]
fn a_run_is_its_definition() {
    // In the last, layers use the keys and values of earlier ones, and have two linears
    // after the MLP.
    for name in ["llama-tied", "qwen3", "gemma3", "gemma4-e2b"] {
        let source = Checkpoint::open(&model(name)).unwrap().rounded(Dtype::BF16);
        let calibration = calibration(6, 16);
        for method in ["wanda", "sparsegpt[damping=diag:0.1]", "s-obs"] {
            for sequential in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let recipe = Recipe::new("2:4", method);
                run(&source, &recipe, job(&calibration), sequential, folder.path()).unwrap();
                let expected = by_hand(&source, &calibration, method, sequential);
                assert!(weights(folder.path()) == expected, "{name}, {method}, {sequential}");
            }
        }
    }
}

#[test]
fn single_tokens_follow_what_texts_begin_with() {
    let text: String = (0..400).map(|i| format!("word {} ", i * i)).collect();
    for (name, begins) in [("llama-tied", false), ("../gguf/gemma3.gguf", true)] {
        let tokenizer = Checkpoint::open(&model(name)).unwrap().tokenizer().unwrap();
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        assert_eq!(bos.is_some(), begins, "{name}");
        let draw = |single_tokens| {
            let how = Sampling { samples: 8, length: 16, single_tokens, seed: 3 };
            Calibration::draw(&tokenizer, ("text", &text), how).unwrap()
        };
        let (usual, none) = (draw(None), draw(Some(0)));
        assert_eq!(
            (usual.single_tokens.len(), none.single_tokens.len()),
            (8 * 16 / Sampling::SHARE, 0),
            "{name}"
        );
        assert_eq!(usual.windows, none.windows, "{name}: starts change what windows are drawn");
        assert_ne!(usual.sha256(), none.sha256(), "{name}");
        for start in &draw(Some(40)).single_tokens {
            assert_eq!(start.len(), 1 + usize::from(begins), "{name}");
            assert_eq!(bos.filter(|_| begins), start.first().copied().filter(|_| begins), "{name}");
        }
        assert_eq!(usual.tokens(), 8 * 16 + usual.single_tokens.iter().flatten().count(), "{name}");
        // A text has no more single tokens than tokens.
        let how = Sampling { samples: 8, length: 16, single_tokens: Some(1 << 40), seed: 3 };
        let error = Calibration::draw(&tokenizer, ("text", &text), how).unwrap_err().to_string();
        assert!(error.contains("the text has only"), "{error}");
        let all = tokenizer.encode(&text).unwrap().len();
        let all = draw(Some(all)).single_tokens.len();
        assert_eq!(all, tokenizer.encode(&text).unwrap().len(), "{name}");
    }
}

#[test]
fn threads_and_files_for_states_do_not_change_a_byte() {
    // Several chunks: sums are closed at the end of each.
    for (name, method) in [("llama", "admm+swap"), ("gemma4-e2b", "sparsegpt")] {
        let source = Checkpoint::open(&model(name)).unwrap().rounded(Dtype::BF16);
        let calibration = calibration(300, 64);
        let recipe = Recipe::new("2:4", method);
        let mut first = None;
        for (threads, spill) in [(1, false), (2, true), (3, false)] {
            let folder = tempfile::tempdir().unwrap();
            let job = Job { state_memory_limit: spill.then_some(0), ..job(&calibration) };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(&source, &recipe, job, true, folder.path())).unwrap();
            let found = weights(folder.path());
            assert!(*first.get_or_insert(found.clone()) == found, "{name}, {threads} threads");
        }
    }
}

#[test]
fn rules_couplings_and_dense_exceptions_are_followed() {
    let source = Checkpoint::open(&model("llama")).unwrap().rounded(Dtype::BF16);
    let mlp = "blocks gate: block (1,_) & up: block (1,_) & down perm (1,0): block (_,1) keep 50%";
    let recipe = Recipe {
        spec: Some("2:4".to_string()),
        method: Some("s-obd".to_string()),
        rules: vec![
            Rule {
                matches: Some("mlp".to_string()),
                spec: Some(mlp.to_string()),
                ..Rule::default()
            },
            Rule { layers: Some("1".to_string()), dense: true, ..Rule::default() },
            Rule {
                matches: Some("layers.1.*q_proj".to_string()),
                spec: Some("rowwise(50%)".to_string()),
                density: Some(0.25),
                ..Rule::default()
            },
        ],
        ..Recipe::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let job = job(&calibration(4, 16));
    let record = run(&source, &recipe, job, true, folder.path()).unwrap();
    let spec = |layer: usize, linear: usize| record.layers[layer].linears[linear].spec.clone();
    assert_eq!(spec(0, 0).as_deref(), Some("2:4"));
    assert!(spec(0, 6).unwrap().starts_with("blocks gate:"));
    assert_eq!(spec(1, 0).as_deref(), Some("rowwise(50%) keep 8"));
    assert_eq!((spec(1, 1), spec(1, 6)), (None, None));
    assert_eq!(record.layers[1].linears[0].density, 0.25);
    assert_eq!(record.layers[0].linears[4].density, 0.5);
    assert_eq!(
        record.notes,
        ["rule 2 overrides rule 1 for 3 tensors", "rule 3 overrides rule 2 for 1 tensor"]
    );
    // Rows of gate and up go with columns of down.
    let written = Checkpoint::open(folder.path()).unwrap();
    let read =
        |name: &str| written.tensor(&format!("model.layers.0.mlp.{name}_proj.weight")).unwrap();
    let (gate, up, down) = (read("gate").to_f32(), read("up").to_f32(), read("down").to_f32());
    let (ff, d) = (read("gate").shape()[0], read("gate").shape()[1]);
    let mut gone = 0;
    for channel in 0..ff {
        let row = |w: &[f32]| w[channel * d..][..d].iter().all(|x| *x == 0.0);
        let column = (0..d).all(|i| down[i * ff + channel] == 0.0);
        assert_eq!((row(&gate), row(&up)), (column, column), "channel {channel}");
        gone += usize::from(column);
    }
    assert_eq!(gone, ff / 2);
    // What is left dense has not changed a bit.
    let name = "model.layers.1.mlp.up_proj.weight".to_string();
    assert_eq!(written.tensor(&name).unwrap().to_f32(), source.tensor(&name).unwrap().to_f32());
}

#[test]
fn a_budget_keeps_its_mean() {
    let source = Checkpoint::open(&model("gemma3")).unwrap().rounded(Dtype::BF16);
    let mut recipe = Recipe::new("rowwise(50%)", "wanda");
    recipe.budget = Some(Budget { density: 0.5, spread: 0.2 });
    let folder = tempfile::tempdir().unwrap();
    let job = job(&calibration(4, 32));
    let record = run(&source, &recipe, job, true, folder.path()).unwrap();
    let of = |layer: usize| record.layers[layer].linears[0].density;
    assert!((record.totals.density - 0.5).abs() < 0.02, "{}", record.totals.density);
    assert!((0..4).any(|layer| of(layer) != of(0)), "all layers have density {}", of(0));
    // A pattern that cannot vary is refused with the plan.
    let fixed = Recipe { budget: recipe.budget, ..Recipe::new("2:4", "wanda") };
    let config = Model::open(&source).unwrap().config().clone();
    let error = Passes::new(&fixed, &TensorFilter::default(), &config, true).unwrap_err();
    assert!(error.to_string().contains("whose density can vary"), "{error}");
}

#[test]
fn a_wide_spread_tells_layers_apart() {
    let source = Checkpoint::open(&model("gemma3")).unwrap().rounded(Dtype::BF16);
    let spread_of = |spread: f64| {
        let mut recipe = Recipe::new("rowwise(50%)", "wanda");
        recipe.budget = Some(Budget { density: 0.5, spread });
        let folder = tempfile::tempdir().unwrap();
        let job = job(&calibration(4, 32));
        let record = run(&source, &recipe, job, false, folder.path()).unwrap();
        assert!((record.totals.density - 0.5).abs() < 0.03, "{}", record.totals.density);
        let densities = record.layers.iter().map(|layer| layer.linears[0].density);
        let (low, high) = densities.fold((1.0f64, 0.0f64), |(a, b), d| (a.min(d), b.max(d)));
        high - low
    };
    let narrow = spread_of(0.05);
    for wide in [0.25, 0.5, 0.9] {
        assert!(spread_of(wide) >= narrow && spread_of(wide) > 0.02, "spread {wide}");
    }
}

#[test]
fn a_rule_after_dense_goes_on_from_the_recipe() {
    let config =
        Model::open(&Checkpoint::open(&model("gemma3")).unwrap()).unwrap().config().clone();
    let plan = |rules: &str| {
        let text = format!("spec = '2:4'\nmethod = 'wanda'\n{rules}");
        let recipe = Recipe::parse(&text).unwrap();
        Passes::new(&recipe, &TensorFilter::default(), &config, false).unwrap()
    };
    let dense = "[[rule]]\nmatch = 'down_proj'\ndense = true\n";
    let lines = plan(&format!("{dense}[[rule]]\nmatch = 'down_proj'\nspec = '1:4'\n")).lines();
    let down: Vec<&String> = lines.iter().filter(|line| line.contains("down_proj")).collect();
    assert_eq!(down.len(), config.layers);
    assert!(down.iter().all(|line| line.contains("1:4") && line.contains("wanda")), "{down:?}");
    // A method alone does not undo `dense`; a density does.
    let lines = plan(&format!("{dense}[[rule]]\nmethod = 'magnitude'\n")).lines();
    assert!(!lines.iter().any(|line| line.contains("down_proj")), "{lines:?}");
    let lines = plan(&format!("{dense}[[rule]]\nmatch = 'down'\ndensity = 0.25\n")).lines();
    assert!(lines.iter().any(|line| line.contains("down_proj")), "{lines:?}");
    // Members of a coupling of which one was dense agree again.
    let coupled = "[[rule]]\nmatch = 'mlp'\nspec = 'mlp keep 75%'\n";
    let lines =
        plan(&format!("{}{coupled}", dense.replace("down_proj'", "layers.0.*down_proj'"))).lines();
    assert!(
        lines
            .iter()
            .filter(|line| line.contains("down_proj"))
            .all(|line| line.contains("gate_proj"))
    );
}
