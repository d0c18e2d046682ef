//! Log-likelihoods of tasks against one pass per choice, and how contexts are tokenized.

use openwork_llm::evaluate::Options;
use openwork_llm::likelihood::{Continuation, Likelihood, log_likelihoods};
use openwork_llm::model::{Decoder, Model, ModelError, Storage};
use openwork_llm::task::{Task, score};
use openwork_llm::tokens::TokenPair;
use openwork_llm::{Checkpoint, LanguageModel};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 7] =
    ["llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma3", "gemma4-e2b"];

/// Differences of two ways to sum in f32, for a few tokens.
const TOLERANCE: f64 = 2e-5;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models").join(name)
}

/// The definition: one pass over context and continuation.
fn slow(decoder: &mut Decoder, one: &Continuation, context: usize) -> Likelihood {
    let tokens = one.tokens();
    decoder.reset();
    let logits = decoder.all_logits(&tokens[..tokens.len() - 1]).expect("logits");
    let mut found = Likelihood { log: 0.0, greedy: true };
    for t in context..tokens.len() {
        let row = logits.row(t - 1);
        let target = f64::from(row[tokens[t] as usize]);
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        found.log += target - sum.ln();
        found.greedy &= row.iter().all(|&x| f64::from(x) <= target);
    }
    found
}

/// Groups of all shapes: shared contexts, contexts of their own, equal choices, choices
/// that begin alike, single tokens, more tokens than a batch.
fn groups(vocab: u32) -> Vec<(Vec<Continuation>, Vec<usize>)> {
    let mut state = 7u32;
    let mut tokens = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) % vocab
            })
            .collect()
    };
    let mut groups = Vec::new();
    for (context, choices) in [
        (1, vec![1]),
        (5, vec![1, 1]),
        (9, vec![3, 1, 7, 2]),
        (30, vec![4, 4, 4]),
        (33, vec![2, 30]),
    ] {
        let context = tokens(context);
        let choices: Vec<Vec<u32>> = choices.into_iter().map(&mut tokens).collect();
        groups.push(choices.iter().map(|c| (context.clone(), c.clone())).collect());
        // The same choices after other contexts.
        groups.push(choices.iter().map(|c| (tokens(4), c.clone())).collect::<Vec<_>>());
        // Twice the first choice, and one that goes on after it.
        let longer = [&choices[0][..], &tokens(3)].concat();
        let alike = [choices[0].clone(), choices[0].clone(), longer];
        groups.push(alike.into_iter().map(|c| (context.clone(), c)).collect());
    }
    let many: Vec<_> = (0..40).map(|_| vec![(tokens(57), tokens(4))]).collect();
    groups.extend(many);
    let build = |group: Vec<(Vec<u32>, Vec<u32>)>| {
        let lengths = group.iter().map(|(context, _)| context.len()).collect();
        let made = |(a, b): &(Vec<u32>, Vec<u32>)| Continuation::new(a, b).expect("not empty");
        (group.iter().map(made).collect(), lengths)
    };
    groups.into_iter().map(build).collect()
}

#[test]
fn shared_contexts_give_the_likelihoods_of_single_passes() {
    for name in FAMILIES {
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let model = Model::open(&checkpoint).expect("a model");
        let mut decoder = Decoder::load(&model, Storage::F32).expect("a decoder");
        let groups = groups(model.config().vocab as u32);
        let asked: Vec<Vec<Continuation>> = groups.iter().map(|(group, _)| group.clone()).collect();
        let mut shares = Vec::new();
        let mut layer = |index| model.layer(index, Storage::F32);
        let found = log_likelihoods(&model, &mut layer, &asked, &mut |share| {
            shares.push(share);
            ControlFlow::Continue(())
        });
        let found = found.expect("likelihoods");
        assert!(shares.is_sorted() && shares.last().is_some_and(|&last| last <= 1.0));
        for ((group, contexts), found) in groups.iter().zip(&found) {
            for ((one, &context), found) in group.iter().zip(contexts).zip(found) {
                let want = slow(&mut decoder, one, context);
                let tolerance = TOLERANCE * (1.0 + want.log.abs());
                assert!((found.log - want.log).abs() < tolerance, "{name}: {found:?} {want:?}");
                assert_eq!(found.greedy, want.greedy, "{name}: {found:?} {want:?}");
            }
        }
        // The layers of a held model are the same ones.
        let held = LanguageModel::open(&folder(name)).expect("a model");
        let pairs: Vec<_> = groups
            .iter()
            .flat_map(|(group, contexts)| group.iter().zip(contexts))
            .map(|(one, &at)| (one.tokens()[..at].to_vec(), one.tokens()[at..].to_vec()))
            .collect();
        let again = held.token_log_likelihoods(&pairs, &mut |_| ControlFlow::Continue(()));
        for (again, found) in again.expect("likelihoods").iter().zip(found.iter().flatten()) {
            assert!((again.log - found.log).abs() < TOLERANCE * (1.0 + found.log.abs()));
        }
    }
}

#[test]
fn a_caller_can_stop() {
    let model = LanguageModel::open(&folder("llama")).expect("a model");
    let pairs = vec![("a".to_string(), " b".to_string())];
    let stopped = model.log_likelihoods(&pairs, &mut |_| ControlFlow::Break(()));
    assert_eq!(stopped.unwrap_err().to_string(), ModelError::Stopped.to_string());
    let text = "the open work of a wall lets the light in ".repeat(4);
    let options = Options { seq_len: Some(8), ..Options::default() };
    let stopped = model.perplexity(&text, &options, &mut |_| ControlFlow::Break(()));
    assert_eq!(stopped.unwrap_err().to_string(), "stopped");
}

#[test]
fn spaces_move_to_the_continuation_and_nothing_is_lost() {
    for name in FAMILIES {
        let checkpoint = Checkpoint::open(&folder(name)).expect("a checkpoint");
        let tokenizer = checkpoint.tokenizer().expect("a tokenizer");
        let encode = |text: &str| tokenizer.encode(text).expect("tokens");
        let pair = |a: &str, b: &str| tokenizer.encode_pair(a, b).expect("tokens");
        for (context, continuation) in [
            ("the wall", " is open"),
            ("the wall ", "is open"),
            ("the wall \n\t", " is open"),
            ("a", "b"),
        ] {
            let TokenPair { context: before, continuation: after } = pair(context, continuation);
            let plain = &before[usize::from(tokenizer.adds_bos())..];
            assert_eq!(plain, encode(context.trim_end()), "{name}: {context:?}");
            let whole = encode(&format!("{context}{continuation}"));
            assert_eq!(after, whole[plain.len()..], "{name}: {context:?} {continuation:?}");
        }
        assert_eq!(pair("the wall ", "is"), pair("the wall", " is"));
        // An empty context, or one of spaces, becomes a special token.
        let start = tokenizer.bos().or(tokenizer.eos().first().copied());
        for context in ["", " "] {
            let found = pair(context, "wall");
            assert_eq!(found.context, [start.expect("a special token")], "{name}");
            assert_eq!(found.continuation, encode(&format!("{context}wall")));
        }
    }
}

#[test]
fn a_document_that_the_model_cannot_read_is_named() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("long.jsonl");
    let long = "wall ".repeat(3000);
    let line = |context: &str| {
        format!("{{\"context\": \"{context}\", \"choices\": [\" a\", \" b\"], \"gold\": 0}}\n")
    };
    std::fs::write(&path, line("a") + "\n" + &line(&long)).expect("a file");
    let checkpoint = Checkpoint::open(&folder("llama")).expect("a checkpoint");
    let (model, tokenizer) = (Model::open(&checkpoint).unwrap(), checkpoint.tokenizer().unwrap());
    let tasks = [Task::read(&path, None).expect("a task")];
    let mut layer = |index| model.layer(index, Storage::F32);
    let mut watch = |_| ControlFlow::Continue(());
    let error = score(&model, &tokenizer, &mut layer, &tasks, &mut watch).unwrap_err();
    let words = error.to_string();
    assert!(error.is_input());
    assert!(words.contains("long.jsonl: line 3: choice 0 and its context are"), "{words}");
    assert!(words.ends_with("(max_position_embeddings); shorten the context"), "{words}");
    let one = [Task::read(&path, Some(1)).expect("a task")];
    let found = score(&model, &tokenizer, &mut layer, &one, &mut watch).expect("a score");
    assert_eq!((found.len(), found[0].documents.len()), (1, 1));
}
