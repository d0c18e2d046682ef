//! The laws of `+quant`: codes in range, the mask untouched, never worse than rounding,
//! equal to it without correlations, and lossless to pack.

mod common;

use common::{Case, Random, cases};
use half::{bf16, f16};
use openwork::hessian::Hessian;
use openwork::prune::{METHODS, Method, PruneError, Pruned, Task, prune};
use openwork::sparse::{CodeGroups, Encoding, GROUPS, Packed, Values, ValuesRef};
use openwork::{Matrix, Pattern};
use std::sync::Arc;

/// All bits and groups as options, with their value types.
fn kinds() -> impl Iterator<Item = (String, Encoding)> {
    [(4, "int4"), (8, "int8")].into_iter().flat_map(|(bits, name)| {
        GROUPS.map(|group| {
            (format!("+quant[bits={bits},group={group}]"), Encoding::new(name, group).unwrap())
        })
    })
}

/// The damping of all methods here, as a share of the diagonal.
const SHARE: f64 = 0.1;

/// Every base method with the damping of the tests.
fn bases() -> impl Iterator<Item = String> {
    METHODS.iter().map(|method| format!("{}[damping=diag:{SHARE}]", method.name))
}

/// The tensors of a case packed with codes, from weights as they are stored.
fn packed(case: &Case, stored: &[Values], encoding: Encoding) -> Vec<Packed> {
    let views: Vec<ValuesRef<'_>> = stored.iter().map(Values::view).collect();
    let packed = Packed::pack_all(&Arc::new(case.spec.clone()), &views)
        .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    packed.iter().map(|packed| packed.with_values(encoding).unwrap()).collect()
}

fn wide(weights: &[Matrix]) -> Vec<Values> {
    weights.iter().map(|w| Values::F32(w.data().to_vec())).collect()
}

fn unpacked(packed: &Packed) -> Vec<f32> {
    packed.unpack().view().to_f32()
}

#[test]
fn packing_is_lossless() {
    for case in cases() {
        for base in bases() {
            for (quant, encoding) in kinds() {
                let at = format!("{base}{quant} on {}", case.name);
                let pruned = case.prune(&format!("{base}{quant}"));
                let mask = case.prune(&base).mask;
                assert!(pruned.mask == mask, "{at}: another mask");
                // Stored in 32 bits, codes and weights are the same numbers.
                for (packed, w) in
                    packed(&case, &wide(&pruned.weights), encoding).iter().zip(&pruned.weights)
                {
                    assert_eq!(unpacked(packed), w.data(), "{at}");
                    assert_eq!(packed.values().encoding(), encoding);
                }
                // So they are in 16 bits, if those express them: always for 4 bits.
                let narrow = |round: &dyn Fn(f32) -> f32, stored: &[Values], name: &str| {
                    for (packed, w) in packed(&case, stored, encoding).iter().zip(&pruned.weights) {
                        let values = unpacked(packed);
                        for (&value, &w) in values.iter().zip(w.data()) {
                            let exact = encoding.kind().bits == 4;
                            let same = if exact { value == w } else { round(value) == round(w) };
                            assert!(same, "{at} in {name}: {value} for {w}");
                        }
                    }
                };
                let each = |f: fn(&Matrix) -> Values| pruned.weights.iter().map(f).collect();
                let halves: Vec<Values> =
                    each(|w| Values::F16(w.data().iter().map(|&w| f16::from_f32(w)).collect()));
                let upper: Vec<Values> =
                    each(|w| Values::Bf16(w.data().iter().map(|&w| bf16::from_f32(w)).collect()));
                narrow(&|w| f16::from_f32(w).to_f32(), &halves, "f16");
                narrow(&|w| bf16::from_f32(w).to_f32(), &upper, "bf16");
            }
        }
    }
}

/// With the scales of a pruned tensor, any weights become values of codes in the same mask,
/// which packing stores without loss; values of codes stay as they are.
#[test]
fn groups_of_codes_round_other_weights() {
    for case in cases() {
        for (quant, encoding) in kinds() {
            let at = format!("{quant} on {}", case.name);
            let pruned = case.prune(&format!("magnitude{quant}")).weights;
            let start: Vec<&[f32]> = pruned.iter().map(Matrix::data).collect();
            let groups = CodeGroups::find(&case.spec, &start, encoding)
                .unwrap_or_else(|error| panic!("{at}: {error}"));
            let mut random = Random::new(3);
            let mut moved = Vec::new();
            for (groups, &start) in groups.iter().zip(&start) {
                let (mut latent, mut values) = (start.to_vec(), start.to_vec());
                groups.round(&mut latent, &mut values);
                assert_eq!((bits(&values), bits(&latent)), (bits(start), bits(start)), "{at}");
                let mut kept = 0;
                groups.each(|offset| {
                    kept += 1;
                    latent[offset] += 0.2 * random.normal();
                });
                assert_eq!(kept, groups.kept(), "{at}");
                groups.round(&mut latent, &mut values);
                let (mut again, mut limited) = (values.clone(), latent.clone());
                groups.round(&mut limited, &mut again);
                assert_eq!((bits(&again), bits(&limited)), (bits(&values), bits(&latent)), "{at}");
                let zeros = start
                    .iter()
                    .zip(&values)
                    .all(|(start, value)| (start.to_bits() == 0) <= (value.to_bits() == 0));
                assert!(zeros, "{at}: a dropped weight changed");
                moved.push(Values::F32(values));
            }
            for (packed, values) in packed(&case, &moved, encoding).iter().zip(&moved) {
                assert_eq!(unpacked(packed), values.view().to_f32(), "{at}");
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn the_error_is_never_above_that_of_rounding() {
    // Errors of fits in f32.
    const ROUNDING: f64 = 1.0 + 1e-6;
    let mut ratios = Vec::new();
    for case in cases() {
        for base in bases() {
            let before = case.prune(&base);
            for (quant, encoding) in kinds() {
                let pruned = case.prune(&format!("{base}{quant}"));
                let rounded: Vec<Matrix> = packed(&case, &wide(&before.weights), encoding)
                    .iter()
                    .map(|packed| Matrix::from_vec(packed.rows(), packed.cols(), unpacked(packed)))
                    .collect();
                let (ours, plain) =
                    (case.damped_error(&pruned.weights, SHARE), case.damped_error(&rounded, SHARE));
                let at = format!("{base}{quant} on {}", case.name);
                assert!(ours <= plain * ROUNDING, "{at}: {ours} for {plain}");
                if plain > 0.0 && encoding.kind().bits == 4 {
                    ratios.push((ours / plain).ln());
                }
            }
        }
    }
    let mean = (ratios.iter().sum::<f64>() / ratios.len() as f64).exp();
    assert!(mean < 0.9, "the error is {mean} times that of rounding");
}

#[test]
fn on_a_diagonal_hessian_it_is_rounding() {
    for mut case in cases() {
        for h in &mut case.hessians {
            let d = h.diagonal();
            let diagonal =
                Matrix::from_fn(d.len(), d.len(), |i, j| if i == j { d[i] } else { 0.0 });
            *h = Hessian::from_matrix(diagonal, h.samples()).unwrap();
        }
        for (quant, encoding) in kinds() {
            let before = case.prune("magnitude");
            let after = case.prune(&format!("magnitude{quant}"));
            assert!(before.mask == after.mask);
            let packed = packed(&case, &wide(&after.weights), encoding);
            for ((old, new), packed) in before.weights.iter().zip(&after.weights).zip(&packed) {
                let scales = packed.values().codes().unwrap().scales();
                let largest = scales.iter().fold(0.0f32, |most, s| most.max(s.to_f32().abs()));
                for (&old, &new) in old.data().iter().zip(new.data()) {
                    // Nearer than any other code, unless it is clipped.
                    let most =
                        old.abs().max(largest * if quant.contains("=8") { 0.5 } else { 8.0 });
                    assert!((old - new).abs() <= most, "{quant} on {}: {old} {new}", case.name);
                    assert!(new == 0.0 || (new > 0.0) == (old > 0.0), "{old} {new}");
                }
                nearest(old, packed);
            }
        }
    }
}

/// Every value of a packed tensor is the nearest to an old weight that its scale expresses.
fn nearest(old: &Matrix, packed: &Packed) {
    let new = unpacked(packed);
    let codes = packed.values().codes().unwrap();
    let (low, high) = if codes.bits().bits() == 4 { (-8.0, 7.0) } else { (-127.0, 127.0) };
    // One row per strip: groups are consecutive weights that are kept.
    if packed.strip_rows() != 1 || packed.format().name == "nm" {
        return;
    }
    let mut group = 0;
    for (old, new) in old.data().chunks(packed.cols()).zip(new.chunks(packed.cols())) {
        let kept: Vec<usize> = (0..old.len()).filter(|&j| old[j] != 0.0).collect();
        for members in kept.chunks(codes.group()) {
            let scale = codes.scales()[group].to_f32();
            group += 1;
            for &j in members {
                let code = if scale == 0.0 { 0.0 } else { (old[j] / scale).clamp(low, high) };
                let off = (new[j] - scale * code).abs();
                assert!(off <= 0.50001 * scale.abs(), "{} by {scale}: {}", old[j], new[j]);
            }
        }
    }
}

#[test]
fn bytes_do_not_depend_on_the_number_of_threads() {
    let big: [(&str, &[usize]); 5] = [
        ("2:4", &[300, 256]),
        ("rows16", &[160, 288]),
        ("columns(50%)", &[250, 200]),
        ("unstructured(50%)", &[120, 130]),
        ("keep 100%", &[210, 140]),
    ];
    for (text, dims) in big {
        let case = Case::new(text, &[("w", dims)], 300);
        for method in ["sparsegpt+quant", "wanda+quant[bits=8]", "magnitude+quant[block=50]"] {
            let [one, two, three] = [1, 2, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let pruned = pool.install(|| case.prune(method));
                pruned.weights[0].data().iter().map(|w| w.to_bits()).collect::<Vec<_>>()
            });
            assert!(one == two && one == three, "{method} on {}", case.name);
        }
    }
}

#[test]
fn errors_of_correlated_columns_cancel() {
    let mut random = Random::new(5);
    let common = random.matrix(400, 1);
    let x = Matrix::from_fn(400, 64, |i, _| common.row(i)[0] + 0.05 * random.normal());
    let mut case = Case::new("keep 100%", &[("w", &[8, 64])], 1);
    case.hessians = vec![common::hessian_of(&x)];
    let rounded = packed(&case, &wide(&case.weights), Encoding::new("int4", 32).unwrap());
    let rounded = Matrix::from_vec(8, 64, unpacked(&rounded[0]));
    let error = |new: &Matrix| case.damped_error(std::slice::from_ref(new), SHARE);
    let ours = error(&case.prune("magnitude[damping=diag:0.1]+quant").weights[0]);
    assert!(ours < 0.5 * error(&rounded), "{ours} for {}", error(&rounded));
}

#[test]
fn every_level_is_rounded_once() {
    for (text, dims) in [
        ("block (4,1) scope (1,8) keep 4 then 2:4", [8, 32]),
        ("columns(50%) then (block (4,4) scope (1,_) keep 50% else 1:2)", [8, 32]),
    ] {
        let case = Case::new(text, &[("w", &dims)], 7);
        let (before, after) = (
            case.prune("sparsegpt[damping=diag:0.1]+refit"),
            case.prune("sparsegpt[damping=diag:0.1]+refit+quant"),
        );
        assert!(before.mask == after.mask, "{text}");
        let (w, mask) = (&after.weights[0], &after.mask.tensors()[0]);
        for i in 0..dims[0] {
            let kept: Vec<f32> =
                (0..dims[1]).filter(|j| mask.get(i * dims[1] + j)).map(|j| w.row(i)[j]).collect();
            // A row is a group: all weights are multiples of one scale.
            let mut codes = openwork::sparse::Quantized::new(openwork::sparse::CodeBits::Four, 32);
            codes.push(&kept);
            let mut back = vec![f32::NAN; kept.len()];
            codes.read(0, &mut back);
            assert_eq!(kept, back, "{text}: row {i}");
        }
    }
}

fn one(w: &[f32], cols: usize, method: &str) -> Result<Pruned, PruneError> {
    let spec = "keep 100%".parse::<Pattern>().unwrap().bind(&[w.len() / cols, cols]).unwrap();
    let h = common::hessian(200, cols, 3);
    let method: Method = method.parse().unwrap();
    prune(&method, &Task::one(&spec, w, Some(&h)))
}

#[test]
fn extreme_weights_have_finite_codes() {
    for method in ["magnitude+quant", "magnitude+quant[bits=8]"] {
        let zeros = one(&[0.0; 80], 40, method).unwrap();
        assert!(zeros.weights[0].data().iter().all(|&w| w == 0.0));
        for size in [1e-30, 1e30] {
            let mut w: Vec<f32> = (0..80).map(|i| size * (i as f32 - 33.0)).collect();
            w[7] = 0.0;
            let pruned = one(&w, 40, method).unwrap();
            assert!(pruned.weights[0].data().iter().all(|w| w.is_finite()), "{method} {size}");
            assert!(pruned.error < 0.3, "{method} {size}: {}", pruned.error);
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let mut w = [1.0; 80];
            w[3] = bad;
            let error = one(&w, 40, method).unwrap_err().to_string();
            assert!(error.contains("every weight must be finite"), "{error}");
        }
    }
}

#[test]
fn it_comes_last_and_options_are_checked() {
    for (text, words) in [
        ("magnitude+quant+refit", "`refit` would change weights that are rounded"),
        ("magnitude+quant+quant", "`quant` would change weights that are rounded"),
        ("magnitude+quant[bits=3]", "bits=3: expected 4 or 8"),
        ("magnitude+quant[group=48]", "group=48: expected 32 or 64 or 128"),
        ("magnitude+quant[scale=9]", "scale=9: a scale is bf16, which has 8 significant bits"),
        ("magnitude+quant[bit=4]", "did you mean `bits`?"),
    ] {
        let error = text.parse::<Method>().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let method: Method = "sparsegpt+swap+quant[bits=8,group=64]".parse().unwrap();
    assert_eq!(method.encoding(), Some(Encoding::new("int8", 64).unwrap()));
    assert_eq!("sparsegpt".parse::<Method>().unwrap().encoding(), None);
}
