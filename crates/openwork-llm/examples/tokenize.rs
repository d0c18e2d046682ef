//! Prints the tokens of a text: `cargo run --example tokenize -- MODEL TEXT`.
//! One line for each document: its token ids. With a third argument `--text`,
//! the text that the ids decode to instead.

use openwork_llm::{Checkpoint, tokens::read_text};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, rest @ ..] = &args[..] else {
        return Err("usage: tokenize MODEL TEXT [--text]".into());
    };
    let tokenizer = Checkpoint::open(Path::new(model))?.tokenizer()?;
    for document in read_text(Path::new(text))? {
        let ids = tokenizer.encode(&document)?;
        if rest.is_empty() {
            println!("{}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
        } else {
            print!("{}", tokenizer.decode(&ids)?);
        }
    }
    Ok(())
}
