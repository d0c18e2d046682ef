//! Laws of packed weights: packing is exact, products equal those of the dense
//! matrix, and parts from anywhere are refused or harmless.

use super::activations::Activations;
use super::kernel::Kernel;
use super::*;
use crate::mask::Mask;
use crate::matrix::Matrix;
use crate::spec::PRESETS;
use half::{bf16, f16};
use proptest::prelude::*;
use std::sync::Arc;

fn bind(text: &str, dims: &[usize]) -> Arc<Spec> {
    Arc::new(text.parse::<Pattern>().unwrap().bind(dims).unwrap())
}

/// Reproducible numbers around zero.
fn number(i: usize, seed: usize) -> f32 {
    ((i * 7919 + seed * 104_729 + 13) % 257) as f32 / 128.0 - 1.0
}

/// Weights that conform to a spec, with odd bits among those that stay.
fn weights(spec: &Spec, tensor: usize, seed: usize) -> Vec<f32> {
    let score = |scope: usize, block: usize| {
        spec.elements(scope, block)
            .map(|e| f64::from(number(e.offset + 31 * e.tensor, seed)).powi(2))
            .sum()
    };
    let mask = match spec.has_levels() {
        true => Mask::example(spec, seed as u64),
        false => Mask::select(spec, score),
    };
    let mut w: Vec<f32> =
        (0..spec.tensors()[tensor].size()).map(|i| number(i + 31 * tensor, seed)).collect();
    mask.apply(tensor, &mut w);
    w
}

/// The same with -0.0, NaNs of several payloads and zeros where weights stay.
fn odd_weights(spec: &Spec, tensor: usize, seed: usize) -> Vec<f32> {
    let mut w = weights(spec, tensor, seed);
    let odd =
        [-0.0f32, 0.0, f32::from_bits(0x7fc1_0000), f32::from_bits(0xff93_0000), f32::INFINITY];
    for (i, w) in w.iter_mut().enumerate() {
        if *w != 0.0 && (i + seed).is_multiple_of(3) {
            *w = odd[(i / 3) % odd.len()];
        }
    }
    w
}

const CASES: &[(&str, &[usize], &str)] = &[
    ("2:4", &[8, 32], "nm"),
    ("2:4", &[5, 20], "nm"),
    ("2:4", &[1, 4], "nm"),
    ("1:4", &[7, 44], "nm"),
    ("view (M,K/4,4) scope (1,1,4) keep 2", &[6, 24], "nm"),
    ("2:4@8", &[8, 48], "coupled"),
    ("2:4@8", &[3, 16], "coupled"),
    ("1:4@8", &[5, 32], "coupled"),
    ("2:4@4", &[7, 40], "coupled"),
    ("rows16", &[32, 64], "rows16"),
    ("block(16,16)", &[32, 64], "block"),
    ("block(8,2,30%)", &[16, 46], "block"),
    ("block (8,4) scope (1,4) keep 1", &[24, 96], "block"),
    ("block(24,128)", &[48, 512], "block"),
    ("block(4,4)", &[8, 32], "general"),
    ("2:4x2", &[8, 32], "general"),
    ("3:4", &[6, 20], "bitmask"),
    ("unstructured(37%)", &[9, 13], "bitmask"),
    ("unstructured(20%)", &[9, 13], "general"),
    ("rowwise(40%)", &[5, 21], "bitmask"),
    ("1:8", &[3, 24], "general"),
    ("7:8", &[3, 24], "bitmask"),
    ("6:8", &[5, 40], "bitmask"),
    ("8:16", &[3, 48], "bitmask"),
    ("16:32", &[3, 96], "bitmask"),
    ("8:16", &[3, 2, 16], "bitmask"),
    ("rowwise(10%)", &[9, 70], "general"),
    ("channel", &[8, 13], "general"),
    ("columns(30%)", &[5, 21], "general"),
    ("columns(30%)", &[40, 21], "gathered"),
    ("block (64,1) scope (1,8) keep 4", &[128, 40], "gathered"),
    ("block (64,1) scope (1,8) keep 4 then 2:4", &[128, 64], "gathered"),
    ("block (16,16) scope (1,_) keep 50% then 2:4", &[32, 64], "gathered"),
    ("block (16,16) scope (1,_) keep 50% else 2:4", &[32, 64], "gathered"),
    ("block (16,16) scope (1,_) keep 50% else 2:4", &[160, 64], "gathered"),
    ("block (24,4) scope (1,4) keep 1 else 2:4", &[120, 48], "gathered"),
    ("block (128,2) scope (1,8) keep 3 else rowwise(30%)", &[256, 48], "gathered"),
    ("columns(25%) else 2:4", &[96, 64], "gathered"),
    ("block (8,3) scope (1,4) keep 3 then 6:9 else 1:3", &[16, 36], "general"),
    ("block (8,3) scope (1,4) keep 3 then rowwise(50%) else rowwise(25%)", &[16, 36], "gathered"),
    (
        "block (32,4) scope (1,2) keep 1 then (block (16,1) scope (1,4) keep 2 then 2:4) else 1:4",
        &[64, 64],
        "gathered",
    ),
    ("scope (1,_) keep all then 2:4", &[16, 16], "general"),
    ("rows16 then 2:4x2", &[32, 64], "general"),
    ("scope (1,4) keep 2 then 1:2", &[6, 16], "general"),
    ("channel then 2:4", &[8, 16], "general"),
    ("block (1,2) scope (1,4) keep 2 else scope (1,4) keep 1", &[3, 24], "general"),
    ("filter", &[4, 2, 3, 3], "general"),
    ("2:4", &[4, 2, 2, 2], "nm"),
    ("scope (4) keep 2", &[12], "nm"),
    ("pad (1,4) scope (1,4) keep 2", &[3, 10], "general"),
    ("in (1,2)+(2,5) pad (1,4) scope (1,4) keep 2", &[4, 10], "general"),
    ("in (M/4,0)+(M*3/4,K) scope (1,4) keep 2", &[8, 16], "general"),
    ("in ~((0,0)+(2,2) | (2,2)+(2,2)) scope (4) keep 2", &[4, 4], "general"),
    ("scope (1,4) keep 0", &[4, 8], "general"),
    ("scope (1,4) keep 4", &[4, 8], "dense"),
    ("keep 100%", &[5, 70], "dense"),
    ("keep 100%", &[3, 2, 7], "dense"),
];

fn equal_bits(values: &Values, dense: ValuesRef<'_>) -> bool {
    let dense = match dense {
        ValuesRef::F32(v) => Values::F32(v.to_vec()),
        ValuesRef::F16(v) => Values::F16(v.to_vec()),
        ValuesRef::Bf16(v) => Values::Bf16(v.to_vec()),
    };
    *values == dense
}

/// The upper half of each number, so that payloads stay.
fn as_bf16(w: &[f32]) -> Vec<bf16> {
    w.iter().map(|w| bf16::from_bits((w.to_bits() >> 16) as u16)).collect()
}

#[test]
fn unpacking_and_parts_give_every_bit_back() {
    for (text, dims, format) in CASES {
        let spec = bind(text, dims);
        for seed in 0..4 {
            let wide = odd_weights(&spec, 0, seed);
            let narrow = as_bf16(&wide);
            let half: Vec<f16> = narrow.iter().map(|v| f16::from_bits(v.to_bits())).collect();
            for dense in [ValuesRef::F32(&wide), ValuesRef::Bf16(&narrow), ValuesRef::F16(&half)] {
                let packed = Packed::pack(&spec, dense).unwrap();
                assert_eq!(packed.format().name, *format, "{text}");
                assert!(equal_bits(&packed.unpack(), dense), "{text} {dims:?} seed {seed}");
                let index = packed.index();
                let bytes = index.len() + packed.kept() * dense.value_type().bytes();
                assert_eq!(packed.stored_bytes(), bytes, "{text}");
                let values = packed.values().to_le_bytes();
                let values = Values::from_le_bytes(dense.value_type(), &values).unwrap();
                let again = Packed::from_parts(&spec, 0, format, index.clone(), values).unwrap();
                assert!(equal_bits(&again.unpack(), dense), "{text} from parts");
                assert_eq!(again.index(), index, "{text}");
            }
        }
    }
}

#[test]
fn sizes_are_the_papers() {
    for (text, share) in [
        ("2:4", 9.0 / 16.0),
        ("2:4@8", 17.0 / 32.0),
        ("2:4@4", 17.0 / 32.0),
        ("1:4", 9.0 / 32.0),
        ("rows16", 0.5 + 1.0 / 512.0),
        ("block(16,16)", 0.5 + 1.0 / 4096.0),
        ("8:16", 9.0 / 16.0),
        ("6:8", 13.0 / 16.0),
        ("rowwise(50%)", 9.0 / 16.0),
        // 3 bits tell which 2 of 4 blocks of two are kept.
        ("2:4x2", 0.5 + 3.0 / 128.0),
    ] {
        let spec = bind(text, &[64, 512]);
        let w = as_bf16(&weights(&spec, 0, 1));
        let packed = Packed::pack(&spec, ValuesRef::Bf16(&w)).unwrap();
        let found = packed.stored_bytes() as f64 / packed.dense_bytes() as f64;
        assert_eq!(found, share, "{text}");
    }
}

#[test]
fn every_preset_packs() {
    for preset in PRESETS {
        let spec = bind(preset.example, preset.shape);
        let w = odd_weights(&spec, 0, 2);
        let packed = Packed::pack(&spec, ValuesRef::F32(&w)).unwrap();
        assert!(equal_bits(&packed.unpack(), ValuesRef::F32(&w)), "{}", preset.name);
    }
    for format in FORMATS {
        let spec = bind(format.example, &[32, 64]);
        assert_eq!(Packed::format_of(&spec, 0).name, format.name);
    }
}

#[test]
fn coupled_tensors_pack_together() {
    for text in [
        "blocks q: view (h d) k -> h d k, h=4 block (1,_,_) & o perm (1,0,2): view k (h d) -> k h d, h=4 block (_,1,_) scope (_,1,1) keep 50%",
        "scopes q: scope (1,4) & o: scope (1,4) keep 3",
    ] {
        let pattern = text.parse::<Pattern>().unwrap();
        let spec = Arc::new(
            pattern
                .bind_all(&[("q", &[16, 8]), ("o", &[16, 8])])
                .or_else(|_| pattern.bind_all(&[("q", &[16, 8]), ("o", &[8, 16])]))
                .unwrap(),
        );
        let w: Vec<Vec<f32>> = (0..2).map(|t| weights(&spec, t, 5)).collect();
        let all = [ValuesRef::F32(&w[0]), ValuesRef::F32(&w[1])];
        let packed = Packed::pack_all(&spec, &all).unwrap();
        for (t, packed) in packed.iter().enumerate() {
            assert!(equal_bits(&packed.unpack(), all[t]), "{text}");
            let values = packed.values().clone();
            let again = Packed::from_parts(&spec, t, "general", packed.index(), values).unwrap();
            assert!(equal_bits(&again.unpack(), all[t]), "{text}");
        }
    }
}

#[test]
fn weights_that_do_not_conform_are_refused_by_name() {
    let spec = bind("2:4", &[2, 8]);
    let mut w = vec![0.0f32; 16];
    w[9..12].fill(1.0);
    let words = |w: &[f32]| Packed::pack(&spec, ValuesRef::F32(w)).unwrap_err().to_string();
    assert_eq!(
        words(&w),
        "the weights do not conform to `2:4`: scope 2 keeps 3 blocks, expected 2; prune them with this spec first"
    );
    w[9] = -0.0;
    assert!(words(&w).contains("-0.0 at offset 9 of tensor `tensor`"), "{}", words(&w));
    assert!(words(&w[..15]).contains("has 15 weights, but the spec expects 16"));
}

/// The definition, in f64.
fn slow(w: &[f32], x: &[f32], row: usize) -> f64 {
    let k = x.len();
    (0..k).map(|j| f64::from(w[row * k + j]) * f64::from(x[j])).sum()
}

/// The same with a vector in f64.
fn slow_f64(w: &[f32], x: &[f64], row: usize) -> f64 {
    let k = x.len();
    (0..k).map(|j| f64::from(w[row * k + j]) * x[j]).sum()
}

/// A kernel with each width of activations that it knows.
fn each_width(kernel: Kernel) -> impl Iterator<Item = (Kernel, Activations)> {
    let all = if kernel == Kernel::Avx512 { &Activations::ALL[..] } else { &Activations::ALL[1..] };
    all.iter().map(move |&width| (kernel, width))
}

/// The vector as integer products round it; `None` if these means do not.
fn rounded(packed: &Packed, x: &[f32], (kernel, width): (Kernel, Activations)) -> Option<Vec<f64>> {
    #[cfg(target_arch = "x86_64")]
    if packed.rounds_vector(kernel) {
        // SAFETY: the machine has AVX-512.
        let planes = unsafe { planes::Planes::new(x, width.planes()) };
        return Some((0..x.len()).map(|i| planes.entry(i)).collect());
    }
    let _ = (packed, x, kernel, width);
    None
}

/// Rounding of sums of `k` products of numbers up to 1.
fn tolerance(k: usize) -> f64 {
    1e-6 * (1.0 + k as f64)
}

/// A spec with these rows and columns for every format.
fn sizes() -> Vec<(Arc<Spec>, usize, usize)> {
    let mut all = Vec::new();
    let mut add = |text: &str, m: usize, k: usize| {
        let spec = text.parse::<Pattern>().unwrap().bind(&[m, k]).unwrap();
        all.push((Arc::new(spec), m, k));
    };
    for k in (4..=64).step_by(4) {
        for m in [1, 2, 3, 7, 8, 9, 17] {
            add("2:4", m, k);
            add("1:4", m, k);
        }
    }
    for units in 1..=5 {
        for m in [1, 2, 8, 9, 19] {
            add("2:4@8", m, 16 * units);
            add("2:4@4", m, 8 * units);
            add("1:4@4", m, 8 * units);
        }
        for strips in [1, 3, 4, 5, 9] {
            add("rows16", 16 * strips, 16 * units);
            add("block(16,16,60%)", 16 * strips, 16 * units);
            add("block(8,6)", 8 * strips, 6 * units);
        }
    }
    for k in 1..=70 {
        add("unstructured(50%)", 5, k);
        add("rowwise(30%)", 3, k);
        add("rowwise(75%)", 9, k);
        add("columns(30%)", 2, k);
    }
    for (n, m) in [(3, 4), (2, 8), (4, 8), (6, 8), (7, 8), (4, 16), (8, 16), (12, 16), (15, 16)] {
        for units in 1..=8 {
            add(&format!("{n}:{m}"), units % 5 + 1, m * units);
        }
    }
    for units in 1..=5 {
        add("8:32", 5, 32 * units);
        add("16:32", 4, 32 * units);
        add("24:32", 3, 32 * units);
        add("2:16", 6, 16 * units);
    }
    for k in [1, 5, 31, 32, 33, 64, 100] {
        add("keep 100%", 1, k);
        add("keep 100%", 9, k);
    }
    for k in [80, 112, 128, 144, 176, 192, 256, 272] {
        add("2:4", 9, k);
        add("1:4", 17, k);
        add("keep 100%", 5, k);
        for text in ["2:4@8", "1:4@8", "2:4@4", "1:4@4"] {
            add(text, 9, k);
            add(text, 16, k);
        }
        for m in [16, 80] {
            add("rows16", m, k);
            add("block(16,16)", m, k);
            add("block(8,8,30%)", m, k);
        }
    }
    for m in [24, 48, 120] {
        add("block(24,24)", m, 120);
        add("block(24,40)", m, 240);
    }
    add("block(24,128)", 96, 512);
    add("block(8,48,1)", 16, 192);
    for units in 1..=5 {
        add("columns(30%)", 8 * units, 7 * units);
        add("block (16,1) scope (1,8) keep 4 then 2:4", 16 * units, 8 * units);
        add("block (64,1) scope (1,8) keep 4 then 2:4", 64 * units, 40);
        add("block (16,16) scope (1,_) keep 50% else 2:4", 32, 32 * units);
        add("block (8,5) scope (1,2) keep 1 then 3:5 else rowwise(40%)", 8 * units, 20);
        add("block (8,4) scope (1,2) keep 1 then rowwise(40%) else 1:4", 8 * units, 24);
        add(
            "block (32,4) scope (1,2) keep 1 then (block (16,1) scope (1,4) keep 2 then 2:4)",
            32,
            32 * units,
        );
        add("channel then 2:4", 4, 4 * units);
    }
    all
}

fn products_are_the_dense_ones(pack: impl Fn(&[f32]) -> Values, round: impl Fn(f32) -> f32) {
    for (spec, m, k) in sizes() {
        let w: Vec<f32> = weights(&spec, 0, m + k).into_iter().map(&round).collect();
        let packed = Packed::pack(&spec, pack(&w).view()).unwrap();
        let x: Vec<f32> = (0..k + 1).map(|i| number(i, 77)).collect();
        let x = &x[1..]; // begins at an odd place
        for kernel in Kernel::available() {
            let mut y = vec![f32::NAN; m];
            let means = (kernel, Activations::Sixteen);
            packed.product(0..m, x, &mut y, means);
            for (row, &y) in y.iter().enumerate() {
                let want = slow(&w, x, row);
                assert!(
                    (f64::from(y) - want).abs() <= tolerance(k),
                    "{} {m} x {k} row {row}: {y} for {want}, {kernel:?}",
                    spec.text()
                );
            }
            // One strip after the other gives the same bits.
            let strip = packed.strip_rows();
            let mut parts = vec![f32::NAN; m];
            for (i, part) in parts.chunks_mut(strip).enumerate() {
                packed.product(i * strip..i * strip + part.len(), x, part, means);
            }
            let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&y), bits(&parts), "{}", spec.text());
        }
    }
}

#[test]
fn a_vector_meets_the_dense_weights() {
    products_are_the_dense_ones(|w| Values::F32(w.to_vec()), |w| w);
    products_are_the_dense_ones(|w| Values::Bf16(as_bf16(w)), |w| bf16::from_f32(w).to_f32());
    products_are_the_dense_ones(
        |w| Values::F16(w.iter().map(|&w| f16::from_f32(w)).collect()),
        |w| f16::from_f32(w).to_f32(),
    );
}

/// A tensor with its values in every kind and group size.
fn in_every_kind(packed: &Packed) -> impl Iterator<Item = Packed> {
    VALUE_KINDS.iter().flat_map(move |kind| {
        let groups = if kind.has_codes() { &GROUPS[..] } else { &GROUPS[..1] };
        groups.iter().map(move |&group| {
            packed.with_values(Encoding::new(kind.name, group).unwrap()).unwrap()
        })
    })
}

/// The dense matrix as f32.
fn dense_f32(packed: &Packed) -> Vec<f32> {
    packed.unpack().view().to_f32()
}

#[test]
fn every_kind_of_values_multiplies_like_what_it_unpacks_to() {
    for (spec, m, k) in sizes() {
        let w = weights(&spec, 0, m + k);
        let packed = Packed::pack(&spec, ValuesRef::F32(&w)).unwrap();
        let x: Vec<f32> = (0..k).map(|i| number(i, 77)).collect();
        for packed in in_every_kind(&packed) {
            let (text, kind) = (spec.text(), packed.values().encoding());
            let dense = dense_f32(&packed);
            for means in Kernel::available().flat_map(each_width) {
                let mut y = vec![f32::NAN; m];
                packed.product(0..m, &x, &mut y, means);
                let rounded = rounded(&packed, &x, means);
                // A strip with fewer rows than the others is multiplied as numbers.
                let whole = m / packed.strip_rows() * packed.strip_rows();
                for (row, &y) in y.iter().enumerate() {
                    let want = match &rounded {
                        Some(x) if row < whole => slow_f64(&dense, x, row),
                        _ => slow(&dense, &x, row),
                    };
                    let far = (f64::from(y) - want).abs();
                    // Other kernels for dense codes round the vector to 16 bits, too.
                    let dense_codes = kind.kind().has_codes() && packed.format().name == "dense";
                    let near = if rounded.is_none() && dense_codes { 17.0 } else { 1.0 };
                    let near = near * tolerance(k);
                    assert!(far <= near, "{text} {m} x {k} {kind} {means:?}: {y}, {want}");
                }
                let strip = packed.strip_rows();
                let mut parts = vec![f32::NAN; m];
                for (i, part) in parts.chunks_mut(strip).enumerate() {
                    packed.product(i * strip..i * strip + part.len(), &x, part, means);
                }
                assert_eq!(y, parts, "{text} {m} x {k} {kind}, strip by strip");
            }
            for rows in [0..m, 0..1, m - 1..m, m / 2..m, 0..0] {
                let mut found = vec![f32::NAN; rows.len() * k];
                packed.rows_f32(rows.clone(), &mut found);
                assert_eq!(found, dense[rows.start * k..rows.end * k], "{text} rows {rows:?}");
            }
            assert_eq!(packed.nonzeros(), dense.iter().filter(|&&w| w != 0.0).count());
            let (format, values) = (packed.format().name, packed.values().clone());
            let again = Packed::from_parts(&spec, 0, format, packed.index(), values).unwrap();
            assert_eq!(dense_f32(&again), dense, "{text} from parts");
            assert_eq!(again.stored_bytes(), packed.values().bytes() + packed.index().len());
        }
    }
}

#[test]
fn many_rows_meet_every_kind_of_values() {
    for (text, m, k) in [
        ("2:4", 9, 100),
        ("2:4@8", 5, 144),
        ("rows16", 32, 144),
        ("block(16,16)", 32, 160),
        ("6:8", 7, 136),
        ("columns(40%)", 4, 75),
        ("keep 100%", 5, 67),
    ] {
        let spec = bind(text, &[m, k]);
        let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, 9))).unwrap();
        for packed in in_every_kind(&packed) {
            let dense = dense_f32(&packed);
            for t in [0, 1, 3, 17, 65, 400] {
                let x = Matrix::from_fn(t, k, |i, j| number(i * k + j, 3));
                for kernel in Kernel::available() {
                    let mut y = Matrix::from_fn(t, m, |_, _| 0.25);
                    packed.products(1.0, x.view(), y.view_mut(), kernel);
                    for i in 0..t {
                        for row in 0..m {
                            let want = slow(&dense, x.row(i), row) + 0.25;
                            let far = (f64::from(y.row(i)[row]) - want).abs();
                            assert!(far <= tolerance(k), "{text} with {t} rows: {want}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn codes_take_the_bits_that_are_promised() {
    for (text, kind, bits) in [
        ("2:4", "int4", 3.25),
        ("2:4@8", "int4", 2.75),
        ("rows16", "int4", 2.0 + 0.25 + 1.0 / 32.0),
        ("2:4", "int8", 5.25),
        ("keep 100%", "int8", 8.5),
        ("keep 100%", "int4", 4.5),
        ("6:8", "int4", 4.375),
    ] {
        let spec = bind(text, &[64, 1024]);
        let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, 1))).unwrap();
        let encoding = Encoding::new(kind, 32).unwrap();
        let packed = packed.with_values(encoding).unwrap();
        assert_eq!(packed.stored_bytes() as f64 * 8.0 / (64.0 * 1024.0), bits, "{text} {kind}");
        let facts = spec.facts().bits_per_weight(encoding.kind().bits_with_scale(32));
        assert_eq!(facts, bits, "{text} {kind}");
    }
}

#[test]
fn each_fault_of_codes_has_its_own_words() {
    let spec = bind("2:4", &[2, 20]);
    let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, 1))).unwrap();
    let coded = packed.with_values(Encoding::new("int8", 32).unwrap()).unwrap();
    let all = coded.values().codes().unwrap();
    let words = |codes: &[u8], scales: &[u8], bits, group| {
        let stored = CodesRef { bits, group, codes, scales };
        match Quantized::from_bytes(stored) {
            Some(codes) => {
                Packed::from_parts(&spec, 0, "nm", coded.index(), codes).unwrap_err().to_string()
            }
            None => "no codes".to_string(),
        }
    };
    let (codes, scales) = (all.codes().to_vec(), all.scale_bytes());
    let eight = CodeBits::Eight;
    assert_eq!(words(&codes, &scales[1..], eight, 32), "no codes");
    assert_eq!(words(&codes, &scales, eight, 48), "no codes");
    assert!(words(&codes[1..], &scales, eight, 32).contains("31 bytes of codes and 2 of scales"));
    assert!(words(&codes, &[], eight, 32).contains("0 scales are stored, too few for 20 values"));
    assert!(words(&codes, &[0x80, 0x7f], eight, 32).contains("scale 0 is not finite"));
    let mut odd = codes.clone();
    odd[3] = 0x80;
    assert!(words(&odd, &scales, eight, 32).contains("code 3 is -128"));
    let mut padded = codes.clone();
    padded[20] = 1;
    assert!(words(&padded, &scales, eight, 32).contains("code 20 is padding but not zero"));
    for (name, group) in [("int5", 32), ("int4", 31)] {
        assert!(Encoding::new(name, group).is_err());
    }
    let w: Vec<f32> = weights(&spec, 0, 1).iter().map(|w| w * f32::INFINITY).collect();
    let w: Vec<f32> = w.iter().map(|w| if w.is_nan() { 0.0 } else { *w }).collect();
    let infinite = Packed::pack(&spec, ValuesRef::F32(&w)).unwrap();
    let error = infinite.with_values(Encoding::new("int4", 32).unwrap()).unwrap_err();
    assert!(error.to_string().contains("which codes cannot represent"), "{error}");
    let large = Packed::pack(&bind("keep 100%", &[1, 2]), ValuesRef::F32(&[0.0, 1e20])).unwrap();
    let error = large.with_values(Encoding::new("f16", 32).unwrap()).unwrap_err();
    assert!(error.to_string().contains("kept value 1 is 100000000000000000000"), "{error}");
}

#[test]
fn many_rows_meet_the_dense_weights() {
    for (text, m, k) in [
        ("2:4", 9, 100),
        ("1:4", 6, 148),
        ("2:4@8", 5, 144),
        ("2:4@4", 4, 72),
        ("rows16", 32, 144),
        ("block(16,16)", 32, 160),
        ("block(8,6)", 16, 156),
        ("block(24,128)", 48, 256),
        ("rowwise(40%)", 5, 131),
        ("6:8", 7, 136),
        ("16:32", 3, 160),
        ("unstructured(60%)", 4, 67),
        ("columns(40%)", 4, 75),
        ("columns(40%)", 16, 75),
        ("block (16,1) scope (1,8) keep 4 then 2:4", 32, 144),
        ("block (16,8) scope (1,_) keep 50% else 2:4", 16, 160),
        ("block (8,3) scope (1,4) keep 3 then rowwise(50%) else rowwise(25%)", 16, 84),
        // Large enough for a matrix unit.
        ("block (64,1) scope (1,8) keep 4 then 2:4", 64, 1024),
        ("block (64,1) scope (1,8) keep 4 then 6:8", 64, 1024),
    ] {
        let spec = bind(text, &[m, k]);
        let w = weights(&spec, 0, 9);
        let packed = Packed::pack(&spec, ValuesRef::F32(&w)).unwrap();
        for t in (0..=20).chain([33, 41, 49, 57, 63, 64, 65, 130, 400]) {
            let x = Matrix::from_fn(t, k, |i, j| number(i * k + j, 3));
            for kernel in Kernel::available() {
                for beta in [0.0, 1.0] {
                    let old = if beta == 0.0 { f32::NAN } else { 0.25 };
                    let mut y = Matrix::from_fn(t, m, |_, _| old);
                    packed.products(beta, x.view(), y.view_mut(), kernel);
                    for i in 0..t {
                        for row in 0..m {
                            let want = slow(&w, x.row(i), row) + f64::from(beta) * 0.25;
                            let found = f64::from(y.row(i)[row]);
                            assert!(
                                (found - want).abs() <= tolerance(k),
                                "{text} with {t} rows: {found} for {want} at {i}, {row}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for text in ["2:4", "2:4@8", "rows16", "block(16,16)", "rowwise(40%)", "8:16"] {
        let (m, k) = (512, 256);
        let spec = bind(text, &[m, k]);
        let w = as_bf16(&weights(&spec, 0, 4));
        let packed = Packed::pack(&spec, ValuesRef::Bf16(&w)).unwrap();
        let x = Matrix::from_fn(20, k, |i, j| number(i * k + j, 3));
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut y = Matrix::zeros(21, m);
                packed.matvec(x.row(0), y.row_mut(20));
                packed.matmul(0.0, x.view(), y.view_mut().part(0, 20, 0, m));
                y.data().iter().map(|y| y.to_bits()).collect::<Vec<_>>()
            })
        };
        let one = run(1);
        assert_eq!(one, run(2), "{text}");
        assert_eq!(one, run(3), "{text}");
    }
}

#[test]
fn each_fault_of_parts_has_its_own_words() {
    let spec = bind("2:4", &[2, 20]);
    let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, 1))).unwrap();
    let (index, values) = (packed.index(), packed.values().clone());
    let words = |format: &str, tensor, index: Vec<u8>, values: PackedValues| {
        Packed::from_parts(&spec, tensor, format, index, values).unwrap_err().to_string()
    };
    assert_eq!(
        words("block", 0, index.clone(), values.clone()),
        "the format of `2:4` is `nm`, not `block`"
    );
    assert_eq!(
        words("nm", 1, index.clone(), values.clone()),
        "the spec has no tensor 1; it has 1 of them, from 0"
    );
    assert_eq!(
        words("nm", 0, index[1..].to_vec(), values.clone()),
        "the index has 7 bytes; the pattern needs 8"
    );
    let short = Values::F32(vec![0.0; 19]);
    assert_eq!(
        words("nm", 0, index.clone(), short.into()),
        "19 f32 values are stored; the pattern needs 20"
    );
    let mut same = index.clone();
    same[0] = 0; // two weights in one place
    assert!(
        words("nm", 0, same, values.clone())
            .contains("the positions of row 0 in columns 0 to 3 do not ascend")
    );
    let mut beyond = index.clone();
    beyond[7] |= 0x80;
    assert!(
        words("nm", 0, beyond, values)
            .contains("bits outside the tensor are set at row 0, column 16")
    );

    let spec = bind("block(8,2)", &[8, 12]);
    let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, 1))).unwrap();
    let words = |index: Vec<u8>| {
        let values = packed.values().clone();
        Packed::from_parts(&spec, 0, "block", index, values).unwrap_err().to_string()
    };
    assert!(words(vec![0x80 | 0b11]).contains("bits after the 6 blocks of strip 0"));
    assert!(words(vec![0b11]).contains("scope 0 keeps 2 blocks, expected 3"));

    for (text, dims, damage, words) in [
        ("6:8", &[2, 16], (3, 0b11), "scope 3 keeps 4 blocks, expected 6"),
        ("3:4", &[1, 12], (1, 0x80), "bits after the last column of row 0 are set"),
        ("rowwise(50%)", &[2, 12], (2, 0x01), "scope 1 keeps"),
        ("unstructured(50%)", &[3, 10], (2, 0x01), "scope 0 keeps"),
    ] {
        let spec = bind(text, dims);
        let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, 1))).unwrap();
        let mut index = packed.index();
        index[damage.0] = if text == "6:8" { 0b1111 } else { index[damage.0] ^ damage.1 };
        let error = Packed::from_parts(&spec, 0, "bitmask", index, packed.values().clone());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }

    let spec = bind("scope (1,6) keep 2", &[1, 18]);
    let values = Values::F32(vec![1.0; 6]);
    let error = Packed::from_parts(&spec, 0, "general", vec![15, 0], values.clone()).unwrap_err();
    assert!(error.to_string().contains("the rank 15 of scope 0"), "{error}");
    let error = Packed::from_parts(&spec, 0, "general", vec![0, 16], values).unwrap_err();
    assert!(error.to_string().contains("bits after the last scope"), "{error}");

    let spec = bind("scope (1,4) keep 0", &[1 << 20, 1 << 20]);
    let error = Packed::from_parts(&spec, 0, "general", vec![], Values::F32(vec![])).unwrap_err();
    assert!(error.to_string().contains("too few for a pruned tensor"), "{error}");
}

proptest! {
    /// Whatever the index says, parts are refused or multiply like what they unpack to.
    #[test]
    fn parts_from_anywhere_are_refused_or_harmless(
        case in 0..CASES.len(), seed in 0usize..4,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (text, dims, format) = CASES[case];
        let spec = bind(text, dims);
        let packed = Packed::pack(&spec, ValuesRef::F32(&weights(&spec, 0, seed))).unwrap();
        let mut index = packed.index();
        for (at, bits) in damage {
            if !index.is_empty() {
                let at = at.index(index.len());
                index[at] ^= bits;
            }
        }
        if let Ok(again) = Packed::from_parts(&spec, 0, format, index, packed.values().clone()) {
            let Values::F32(dense) = again.unpack() else { unreachable!("f32 in, f32 out") };
            let x: Vec<f32> = (0..again.cols()).map(|i| number(i, 8)).collect();
            let mut y = vec![0.0; again.rows()];
            again.matvec(&x, &mut y);
            for (row, &y) in y.iter().enumerate() {
                prop_assert!((f64::from(y) - slow(&dense, &x, row)).abs() <= tolerance(x.len()));
            }
            let repacked = Packed::pack(&spec, ValuesRef::F32(&dense));
            prop_assert!(repacked.is_ok(), "{:?}", repacked.err());
        }
    }
}
