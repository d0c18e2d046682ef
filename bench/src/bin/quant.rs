//! The table of rounding: patterns by value types on captured layers, with the error of
//! plain rounding, of two peers and of `+quant`.
//!
//! Peers, written here from their descriptions:
//!
//! * `minimum`: plain rounding to 16 levels between a minimum and a maximum, as in ggml's
//!   Q4_1, in groups twice as large: as many bytes as a scale alone;
//! * `joint sweep`: SparseGPT's mask, then columns from left to right, each set to zero or to
//!   the nearest code, with the error made up for by the columns to the right, pruned or not
//!   (SparseGPT's combination with GPTQ).

use clap::Parser;
use half::bf16;
use openwork::hessian::{Damping, Hessian};
use openwork::mask::Bits;
use openwork::prune::measure::output_error;
use openwork::sparse::{CodeBits, Encoding, Packed, Quantized, ValuesRef};
use openwork::{Matrix, Spec};
use openwork_bench::{Captures, Common, Failed, bind, capture, finish, record, run};
use serde_json::json;
use std::sync::Arc;

/// Round captured layers in every way and print a Markdown table per value type
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    captures: Captures,
    /// Layers, such as 14.q,14.down [default: all]
    #[arg(long, value_delimiter = ',')]
    layers: Vec<String>,
    /// Patterns
    #[arg(long, value_delimiter = ';', default_value = "keep 100%;6:8;16:32;2:4;2:4@8;rows16")]
    patterns: Vec<String>,
    /// Value types
    #[arg(long, value_delimiter = ',', default_value = "int8,int4")]
    values: Vec<String>,
    /// The method that `+quant` follows
    #[arg(long, default_value = "sparsegpt+refit")]
    method: String,
    /// More modifiers to compare, such as +quant[sweeps=0];+quant[group=64]
    #[arg(long, value_delimiter = ';')]
    quants: Vec<String>,
    /// Values that share a scale
    #[arg(long, default_value_t = Encoding::DEFAULT_GROUP)]
    group: usize,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    common: Common,
}

fn main() -> std::process::ExitCode {
    finish(table(Args::parse()))
}

fn table(args: Args) -> Result<(), Failed> {
    let folder = args.captures.folder()?;
    let layers = if args.layers.is_empty() { capture::names(&folder)? } else { args.layers };
    let mut results = Vec::new();
    println!("{} layers ({}), {} threads\n", layers.len(), layers.join(", "), args.threads);
    for values in &args.values {
        let encoding = Encoding::new(values, args.group)?;
        let bits = encoding.kind().bits;
        let own = format!("+quant[bits={bits},group={}]", args.group);
        let quants: Vec<String> = std::iter::once(own).chain(args.quants.clone()).collect();
        let mut head = vec!["pattern".to_string(), "before".to_string(), "rounding".to_string()];
        if bits == 4 {
            head.push("minimum".to_string());
        }
        head.push("joint sweep".to_string());
        head.extend(quants.iter().map(|quant| format!("`{quant}`")));
        head.push("seconds".to_string());
        let mut rows = vec![head];
        for pattern in &args.patterns {
            let mut columns: Vec<Vec<f64>> = vec![Vec::new(); rows[0].len() - 2];
            let mut seconds = 0.0;
            for name in &layers {
                let layer = capture::load(&folder, name)?;
                let (w, h) = (&layer.weight, &layer.hessian);
                let spec = Arc::new(bind(pattern, w.rows(), w.cols())?);
                let before = run(&args.method, &spec, w, h, args.threads)?;
                let mut errors = vec![before.error];
                let pruned = &before.weights[0];
                errors.push(error(w, &rounded(&spec, pruned, encoding)?, h));
                if bits == 4 {
                    let mask = &before.mask.tensors()[0];
                    errors.push(error(w, &with_minimum(pruned, mask, 2 * args.group), h));
                }
                let sparse = run("sparsegpt[damping=mean:0.01]", &spec, w, h, args.threads)?;
                let code_bits = encoding.kind().code_bits().ok_or("give int8 or int4")?;
                let swept = joint_sweep(w, &sparse.mask.tensors()[0], h, code_bits, args.group)?;
                errors.push(error(w, &swept, h));
                for (i, quant) in quants.iter().enumerate() {
                    let quantized =
                        run(&format!("{}{quant}", args.method), &spec, w, h, args.threads)?;
                    errors.push(quantized.error);
                    if i == 0 {
                        seconds += quantized.seconds - before.seconds;
                    }
                }
                for (column, &error) in columns.iter_mut().zip(&errors) {
                    column.push(error);
                }
                results.push(json!({
                    "pattern": pattern, "values": values, "layer": layer.name,
                    "columns": &rows[0][1..rows[0].len() - 1], "errors": errors,
                }));
                eprintln!("{pattern} {values} {name} done");
            }
            let mut row = vec![format!("`{pattern}`")];
            let mean =
                |errors: &Vec<f64>| format!("{:.3} %", 100.0 * record::geometric_mean(errors));
            row.extend(columns.iter().map(mean));
            row.push(format!("{seconds:.2}"));
            rows.push(row);
        }
        println!("### `{values}`\n\n{}", record::markdown(&rows));
    }
    args.common.save("quant", json!({"threads": args.threads, "results": results}))
}

/// The relative output error.
fn error(w: &Matrix, new: &Matrix, h: &Hessian) -> f64 {
    output_error(w.view(), new.view(), h.matrix().view()).relative()
}

/// What packing with a value type leaves.
fn rounded(spec: &Arc<Spec>, w: &Matrix, encoding: Encoding) -> Result<Matrix, Failed> {
    let packed = Packed::pack(spec, ValuesRef::F32(w.data()))?.with_values(encoding)?;
    Ok(Matrix::from_vec(w.rows(), w.cols(), packed.unpack().view().to_f32()))
}

/// Every group of kept weights of a row rounded to 16 levels from a minimum on: the best of
/// some ranges.
fn with_minimum(w: &Matrix, mask: &Bits, group: usize) -> Matrix {
    let mut new = w.clone();
    let cols = w.cols();
    for i in 0..w.rows() {
        let kept: Vec<usize> = (0..cols).filter(|&j| mask.get(i * cols + j)).collect();
        for members in kept.chunks(group) {
            let values: Vec<f32> = members.iter().map(|&j| w.row(i)[j]).collect();
            let low = values.iter().copied().fold(f32::INFINITY, f32::min);
            let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let middle = 0.5 * (low + high);
            let mut best = (f64::INFINITY, values.clone());
            for clip in [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6] {
                let step = bf16::from_f32(clip * (high - low) / 15.0).to_f32();
                let least = bf16::from_f32(middle - clip * (middle - low)).to_f32();
                let code = |v: f32| if step == 0.0 { 0.0 } else { ((v - least) / step).round() };
                let new: Vec<f32> =
                    values.iter().map(|&v| least + step * code(v).clamp(0.0, 15.0)).collect();
                let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
                let error: f64 = values.iter().zip(&new).map(square).sum();
                if error < best.0 {
                    best = (error, new);
                }
            }
            members.iter().zip(best.1).for_each(|(&j, value)| new.row_mut(i)[j] = value);
        }
    }
    new
}

/// Columns from left to right, each zero or rounded, with U of all columns.
fn joint_sweep(
    w: &Matrix,
    mask: &Bits,
    h: &Hessian,
    bits: CodeBits,
    group: usize,
) -> Result<Matrix, Failed> {
    let curvature = h.damp(Damping::Mean(0.01))?;
    let (u, unit, cols) = (curvature.upper(), curvature.scale(), w.cols());
    let mut new = Matrix::zeros(w.rows(), cols);
    for i in 0..w.rows() {
        let mut x: Vec<f64> = (0..cols).map(|j| f64::from(w.row(i)[j]) * unit[j]).collect();
        let (mut done, mut scale) = (0, 0.0f32);
        for j in 0..cols {
            let mut q = 0.0f32;
            if mask.get(i * cols + j) && unit[j] > 0.0 {
                let value = |j: usize| (x[j] / unit[j].max(1e-30)) as f32;
                if done % group == 0 {
                    let rest = (j..cols).filter(|&l| mask.get(i * cols + l)).take(group);
                    let mut codes = Quantized::new(bits, group);
                    codes.push(&rest.map(value).collect::<Vec<_>>());
                    scale = codes.scales().first().map_or(0.0, |scale| scale.to_f32());
                }
                done += 1;
                let (low, high) =
                    if bits == CodeBits::Four { (-8.0, 7.0) } else { (-127.0, 127.0) };
                if scale != 0.0 {
                    q = scale * (value(j) / scale).round().clamp(low, high);
                }
            }
            new.row_mut(i)[j] = q;
            let e = (x[j] - f64::from(q) * unit[j]) / f64::from(u.row(j)[j]);
            for (x, u) in x[j + 1..].iter_mut().zip(&u.row(j)[j + 1..]) {
                *x -= e * f64::from(*u);
            }
        }
    }
    Ok(new)
}
