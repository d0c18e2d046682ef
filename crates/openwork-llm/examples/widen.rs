//! Writes every tensor of a model to stdout as little-endian f32, in the order
//! of `Checkpoint::names`: `cargo run --example widen -- MODEL > weights.bin`.
//! Names and shapes go to stderr.

use openwork_llm::Checkpoint;
use std::error::Error;
use std::io::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args().nth(1).ok_or("usage: widen MODEL")?;
    let model = Checkpoint::open(Path::new(&model))?;
    let mut out = std::io::stdout().lock();
    for tensor in model.tensors() {
        eprintln!("{} {:?} {}", tensor.name(), tensor.shape(), tensor.dtype());
        let bytes: Vec<u8> = tensor.to_f32().iter().flat_map(|w| w.to_le_bytes()).collect();
        out.write_all(&bytes)?;
    }
    Ok(())
}
