//! Gradients of every family against torch's autograd: `testdata/models`, made by
//! `testdata/make_gradients.py`.

use openwork::MatrixRef;
use openwork_llm::Checkpoint;
use openwork_llm::model::backward::{Activations, Interior, LayerGradients, Objective};
use openwork_llm::model::{Layer, Model, NoTap, NormSlot, Storage};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest difference to torch, as a share of the parameter's largest gradient.
const TOLERANCE: f32 = 1e-4;

/// The tiny models, all of which can be trained.
fn folders() -> Vec<PathBuf> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models");
    let mut folders: Vec<PathBuf> =
        models.read_dir().expect("tiny models").map(|entry| entry.expect("one").path()).collect();
    folders.sort();
    assert!(folders.len() >= 12, "the tiny models of most families");
    folders
}

/// All tensors of 32 bits in a file, as the bits say.
fn tensors<T>(path: &Path, from: fn([u8; 4]) -> T) -> BTreeMap<String, Vec<T>> {
    let bytes = std::fs::read(path).expect("a golden file");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    let numbers = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|&b| from(b)).collect();
    file.iter().map(|(name, tensor)| (name.to_string(), numbers(tensor.data()))).collect()
}

/// The first window of the golden file, of 23 tokens.
fn window(folder: &Path) -> Vec<u32> {
    tensors(&folder.join("golden.safetensors"), u32::from_le_bytes)["ids"][..23].to_vec()
}

const CROSS_ENTROPY: Objective =
    Objective { distillation: 0.0, cross_entropy: 1.0, temperature: 1.0 };

#[test]
fn gradients_equal_those_of_torch() {
    for folder in folders() {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let file = folder.join("gradients.safetensors");
        let mut want = tensors(&file, f32::from_le_bytes);
        let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        let tokens = match want.remove("ids") {
            Some(_) => tensors(&file, u32::from_le_bytes)["ids"].clone(),
            None => window(&folder),
        };

        let layers: Vec<Layer> = (0..model.config().layers)
            .map(|index| model.layer(index, Storage::F32).expect("a layer"))
            .collect();
        let embedded = model.embed(std::slice::from_ref(&tokens)).expect("tokens");
        let (states, mut carried) = embedded.into_parts();
        let mut states = states.into_vec();
        let mut kept: Vec<Activations> = layers.iter().map(|_| Activations::default()).collect();
        for (layer, kept) in layers.iter().zip(&mut kept) {
            layer.forward_saving(&mut states, &mut carried, kept);
        }
        let targets: Vec<Option<u32>> =
            tokens[1..].iter().copied().map(Some).chain([None]).collect();
        let states = MatrixRef::new(&states, tokens.len(), model.config().hidden);
        let head = model.head().expect("a head");
        let top = head.backward(CROSS_ENTROPY, states, None, &targets);

        let mut compared = 0;
        let mut compare = |parameter: &str, got: &[f32]| {
            let want = want.get(parameter).unwrap_or_else(|| panic!("{name}: no {parameter}"));
            assert_eq!(got.len(), want.len(), "{name}: {parameter}");
            let scale = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            for (i, (x, y)) in got.iter().zip(want).enumerate() {
                assert!(
                    (x - y).abs() <= TOLERANCE * scale,
                    "{name}: {parameter}: entry {i} is {x}, not {y} (scale {scale})"
                );
            }
            compared += 1;
        };
        assert!((top.loss - f64::from(want["loss"][0])).abs() < 1e-5 * top.loss, "{name}: loss");
        compare("model.norm.weight", &top.norm);
        let (mut d, mut interior) = (top.states.into_vec(), Interior::default());
        let mut d_shared = vec![0.0; carried.keys_values.len()];
        for (layer, kept) in layers.iter().zip(&mut kept).rev() {
            let mut grads = LayerGradients::new(layer);
            layer.backward(kept, &mut interior, &mut d, &mut d_shared, &mut grads);
            let prefix = format!("model.layers.{}.", layer.index());
            for (i, linear) in layer.info().linears.iter().map(|linear| &linear.name).enumerate() {
                compare(&format!("{prefix}{linear}.weight"), grads.weights[i].data());
                if !grads.biases[i].is_empty() {
                    compare(&format!("{prefix}{linear}.bias"), &grads.biases[i]);
                }
            }
            for (slot, grad) in NormSlot::ALL.iter().zip(&grads.norms) {
                if let Some(norm) = slot.name(model.config(), layer.index()) {
                    compare(&format!("{prefix}{norm}.weight"), grad);
                }
            }
        }
        assert_eq!(compared, want.len() - 1, "{name}: all parameters but the embedding");
    }
}

#[test]
fn the_saving_forward_computes_the_same_bits() {
    for folder in folders() {
        let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        let mut hidden = model.embed(&[window(&folder)]).expect("tokens");
        let (states, mut carried) = hidden.copy().into_parts();
        let mut states = states.into_vec();
        let mut kept = Activations::default();
        for index in 0..model.config().layers {
            let layer = model.layer(index, Storage::F32).expect("a layer");
            layer.forward(&mut hidden, &mut NoTap);
            layer.forward_saving(&mut states, &mut carried, &mut kept);
            let same = states == hidden.states().data();
            assert!(same, "{} layer {index}", folder.display());
        }
    }
}

#[test]
fn gradients_have_the_same_bytes_at_any_thread_count() {
    for folder in folders() {
        let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        // As long as a tile of attention or a chunk of a delta net.
        let limit = model.config().max_positions as u32;
        let tokens: Vec<u32> = (0..limit).map(|i| i * 7 % 280).collect();
        let embedded = || model.embed(std::slice::from_ref(&tokens)).expect("tokens");
        let layers: Vec<Layer> = (0..model.config().layers)
            .map(|index| model.layer(index, Storage::F32).expect("a layer"))
            .collect();
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads").install(|| {
                let (states, mut carried) = embedded().into_parts();
                let mut states = states.into_vec();
                let mut kept = Activations::default();
                let mut all = Vec::new();
                for layer in &layers {
                    layer.forward_saving(&mut states, &mut carried, &mut kept);
                    let (mut d, mut grads) = (states.clone(), LayerGradients::new(layer));
                    let (mut interior, mut shared) =
                        (Interior::default(), carried.keys_values.clone());
                    layer.backward(&kept, &mut interior, &mut d, &mut shared, &mut grads);
                    all.extend(grads.slices().flatten().chain(&d).map(|x| x.to_bits()));
                }
                all
            })
        };
        let one = run(1);
        assert!(one == run(2) && one == run(3), "{}", folder.display());
    }
}
