//! Benchmarks methods on captured layers and prints one JSON object per result.
//!
//! `cargo bench -p openwork --bench prune -- CAPTURES LAYERS SPEC METHODS [REPEATS [SAMPLES]]`,
//! with LAYERS such as `14.q,14.down` and METHODS such as
//! `sparsegpt,sparsegpt+refit`; `RAYON_NUM_THREADS` sets the threads.
//!
//! Methods are run alternately and the minimum time of each is reported, because other
//! work may share the machine. A time covers all of `prune`: damping, factorization,
//! method, and the error with the undamped H in f64; `error_seconds` is the last part
//! alone. `cpu_seconds` is the CPU time of all threads (on Linux), which a busy machine
//! affects less.
//!
//! H is the captured one. With SAMPLES it is computed from the first SAMPLES captured
//! inputs, some of which `auto` holds out, and the error is measured on the inputs that
//! the capture holds out.

use std::path::Path;
use std::time::Instant;

use openwork::hessian::{Hessian, HessianSum};
use openwork::prune::measure::output_error;
use openwork::prune::{Method, Task, prune, split_list};
use openwork::{Matrix, MatrixRef, Pattern};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [captures, layers, spec, methods, rest @ ..] = args.as_slice() else {
        println!("give CAPTURES LAYERS SPEC METHODS [REPEATS [SAMPLES]]");
        return;
    };
    let repeats: usize = rest.first().map_or(3, |text| text.parse().expect("REPEATS is a number"));
    let samples: Option<usize> = rest.get(1).map(|text| text.parse().expect("SAMPLES is a number"));
    let methods: Vec<Method> = split_list(methods)
        .expect("METHODS is a list")
        .iter()
        .map(|text| text.parse().unwrap_or_else(|error| panic!("{error}")))
        .collect();
    for layer in layers.split(',') {
        let file = std::fs::read(Path::new(captures).join(format!("{layer}.safetensors")))
            .expect("a captured layer");
        let (shape, bytes) = entry(&file, "weight");
        let w = Matrix::from_vec(shape[0], shape[1], floats(bytes));
        let k = w.cols();
        let (h, judge) = match samples {
            None => {
                let h = entry(&file, "hessian").1.chunks_exact(8);
                let h = h.map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes"))).collect();
                let h = Hessian::from_matrix(Matrix::from_vec(k, k, h), Some(65_536));
                let h = h.expect("a Hessian");
                (h.clone(), h)
            }
            Some(n) => (sampled(&file, "inputs", n), sampled(&file, "held_out", usize::MAX)),
        };
        let spec = spec.parse::<Pattern>().unwrap_or_else(|error| panic!("{error}"));
        let spec = spec.bind(&[w.rows(), k]).unwrap_or_else(|error| panic!("{error}"));

        let mut least = vec![[f64::INFINITY; 2]; methods.len()];
        let mut found = vec![(f64::NAN, String::new()); methods.len()];
        let mut error_least = [f64::INFINITY; 2];
        for _ in 0..repeats {
            for (i, method) in methods.iter().enumerate() {
                let clock = Clock::start();
                let pruned = prune(method, &Task::one(&spec, w.data(), Some(&h)))
                    .unwrap_or_else(|error| panic!("{error}"));
                clock.least(&mut least[i]);
                pruned.mask.conforms(&spec).expect("the mask conforms");
                let clock = Clock::start();
                let error = output_error(w.view(), pruned.weights[0].view(), judge.matrix().view());
                clock.least(&mut error_least);
                let damping = pruned.damping.map_or(String::new(), |damping| damping.to_string());
                found[i] = (error.relative(), damping);
            }
        }
        for ((method, [seconds, cpu]), (error, damping)) in methods.iter().zip(least).zip(found) {
            println!(
                "{{\"layer\": \"{layer}\", \"rows\": {}, \"columns\": {k}, \"spec\": \"{}\", \
                 \"method\": \"{method}\", \"damping\": \"{damping}\", \"threads\": {}, \
                 \"seconds\": {seconds:.4}, \"cpu_seconds\": {cpu:.4}, \
                 \"error_seconds\": {:.4}, \"error_cpu_seconds\": {:.4}, \
                 \"error\": {error:.5}}}",
                w.rows(),
                spec.text(),
                rayon::current_num_threads(),
                error_least[0],
                error_least[1],
            );
        }
    }
}

/// H of the first `n` rows of a tensor in a capture.
fn sampled(file: &[u8], name: &str, n: usize) -> Hessian {
    let (shape, bytes) = entry(file, name);
    let (n, k) = (n.min(shape[0]), shape[1]);
    let mut sum = HessianSum::new(k);
    sum.add(MatrixRef::new(&floats(&bytes[..4 * n * k]), n, k)).expect("finite inputs");
    sum.finish().expect("at least one sample")
}

/// Seconds by the wall and of running threads.
struct Clock {
    wall: Instant,
    cpu: f64,
}

impl Clock {
    fn start() -> Self {
        Self { wall: Instant::now(), cpu: cpu_seconds() }
    }

    fn least(&self, least: &mut [f64; 2]) {
        least[0] = least[0].min(self.wall.elapsed().as_secs_f64());
        least[1] = least[1].min(cpu_seconds() - self.cpu);
    }
}

/// The first number of each thread's schedstat is its nanoseconds on a processor.
fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}

/// Shape and bytes of a tensor in a safetensors file.
fn entry<'a>(file: &'a [u8], name: &str) -> (Vec<usize>, &'a [u8]) {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = file[8..].split_at(length);
    let header = std::str::from_utf8(header).expect("a header of text");
    let at = header.find(&format!("\"{name}\":")).expect("the tensor is in the file");
    let list = |key: &str| -> Vec<usize> {
        let after = &header[at + header[at..].find(key).expect("the key") + key.len()..];
        let inner = &after[after.find('[').expect("a list") + 1..after.find(']').expect("its end")];
        inner.split(',').map(|n| n.trim().parse().expect("a number")).collect()
    };
    let offsets = list("data_offsets");
    (list("shape"), &data[offsets[0]..offsets[1]])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words.map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}
