//! The model that the program carries, against the figures it came with.

use openwork_llm::Checkpoint;
use openwork_llm::demo;
use openwork_llm::evaluate::{Options, evaluate};
use openwork_llm::model::Model;
use serde_json::Value;

fn facts() -> Value {
    serde_json::from_str(include_str!("../demo/entropy.json")).expect("the file is JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn perplexity_is_that_of_transformers_and_near_the_truth() {
    let checkpoint = Checkpoint::open("demo".as_ref()).expect("the demo");
    let model = Model::open(&checkpoint).expect("a model");
    let facts = facts();
    let seq_len = facts["transformers"]["seq_len"].as_u64().expect("a number") as usize;
    let options = Options { seq_len: Some(seq_len), ..Options::default() };
    let found = evaluate(&model, demo::EVALUATION, &options, &mut |_| ()).expect("a perplexity");
    let (perplexity, wanted) = (found.token_perplexity(), number(&facts["transformers"]["dense"]));
    assert!((perplexity / wanted - 1.0).abs() < 1e-4, "{perplexity}, not {wanted}");
    let truth = demo::token_perplexity();
    assert!(perplexity > truth && perplexity < 1.1 * truth, "{perplexity}, the truth is {truth}");
}

#[test]
fn the_text_is_the_one_whose_entropy_is_known() {
    let facts = facts();
    let tokenizer = Checkpoint::open("demo".as_ref()).expect("the demo").tokenizer();
    let tokens = tokenizer.expect("a tokenizer").encode(demo::EVALUATION).expect("tokens");
    assert_eq!(facts["tokens"], tokens.len());
    assert_eq!(facts["bytes"], demo::EVALUATION.len());
    assert_eq!(facts["words"], demo::EVALUATION.split_whitespace().count());
    let nats = number(&facts["nats"]);
    assert!((demo::token_perplexity().ln() - nats / tokens.len() as f64).abs() < 1e-9);
}
