//! Hints for options of other pruning tools: what to write instead.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use openwork::spec::distance;

/// Options that openwork does not have, and what to do instead.
struct FlagHint {
    flags: &'static [&'static str],
    hint: &'static str,
}

/// Options of Wanda, SparseGPT, llm-compressor and llama.cpp that users try.
const FLAG_HINTS: &[FlagHint] = &[
    FlagHint {
        flags: &["--dataset", "--dataset_name", "--dataset_path", "--calib_dataset"],
        hint: "pass the text as a file (.txt or .jsonl): --calib TEXT to prune, --text TEXT to evaluate",
    },
    FlagHint {
        flags: &["--cache_dir", "--cache-dir", "--hf_token", "--token", "--revision"],
        hint: "MODEL may be a name on the Hugging Face Hub, org/name@revision; HF_HOME and HF_TOKEN set cache and token",
    },
    FlagHint {
        flags: &["--ignore", "--skip"],
        hint: "tensors whose names match --exclude RE stay dense; lm_head and the embedding are never pruned",
    },
    FlagHint {
        flags: &["--targets", "--prune_only", "--minlayer", "--maxlayer", "--invert"],
        hint: "select tensors by name: --include RE or --exclude RE",
    },
    FlagHint {
        flags: &["--prunen", "--prunem", "--mask_structure", "--sparsity"],
        hint: "the pattern is one option: --spec 2:4, --spec 'rowwise(50%)'",
    },
    FlagHint {
        flags: &["--percdamp", "--dampening_frac"],
        hint: "damping is an option of the method: --method 'sparsegpt[damping=mean:0.01]'",
    },
    FlagHint {
        flags: &["--blocksize", "--block_size"],
        hint: "the block size is an option of the method: --method 'sparsegpt[block=128]'",
    },
    FlagHint {
        flags: &["--num_calibration_samples", "--num-samples", "--num_samples"],
        hint: "the number of calibration windows is --samples N",
    },
    FlagHint {
        flags: &["--max_seq_length", "--max_seq_len", "--sequence_length", "--model_seqlen"],
        hint: "the length of a window in tokens is --seq-len L",
    },
    FlagHint {
        flags: &["--output_dir", "--output-dir", "--output", "--save_dir", "--save-dir"],
        hint: "the output is --out PATH, or -o PATH",
    },
    FlagHint {
        flags: &["--true-sequential", "--true_sequential"],
        hint: "--sequential recomputes the inputs after each part of a layer",
    },
    FlagHint {
        flags: &["--torch_dtype", "--precision"],
        hint: "the type of the written weights is --dtype TYPE",
    },
    FlagHint {
        flags: &["--device", "--device_map", "--oneshot_device", "-ngl", "--gpus"],
        hint: "openwork runs on the CPU; --threads N sets the number of threads",
    },
    FlagHint {
        flags: &["--save_compressed"],
        hint: "write the pruned model first, then compress it: openwork pack MODEL --out DIR",
    },
    FlagHint {
        flags: &["--eval_zero_shot", "--tasks"],
        hint: "tasks are files: --task FILE (docs/evaluation.md)",
    },
    FlagHint {
        flags: &["-p", "--prompt"],
        hint: "only `openwork generate MODEL --prompt TEXT` takes a prompt",
    },
    FlagHint { flags: &["-m"], hint: "MODEL is an argument without a flag" },
];

/// Replaces clap's guess for an unknown option by a hint from the table, and
/// removes guesses that are far from what was typed.
pub fn improve(error: &mut clap::Error) {
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return };
    let flag = flag.clone();
    // The usage line contains clap's guess.
    error.remove(ContextKind::Usage);
    if let Some(known) = FLAG_HINTS.iter().find(|known| known.flags.contains(&flag.as_str())) {
        error.remove(ContextKind::SuggestedArg);
        let hint = vec![StyledStr::from(known.hint)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hint));
        return;
    }
    // clap suggests `-- -x` for every unknown option: no argument here begins with a dash.
    error.remove(ContextKind::Suggested);
    if let Some(ContextValue::String(guess)) = error.get(ContextKind::SuggestedArg)
        && distance(&flag, guess) > flag.len() / 3
    {
        error.remove(ContextKind::SuggestedArg);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every option and alias of every command.
    fn options(command: &clap::Command) -> BTreeSet<String> {
        let own = command.get_arguments().flat_map(|argument| {
            let long = argument.get_long_and_visible_aliases().unwrap_or_default();
            let short = argument.get_short().map(|short| format!("-{short}"));
            let hidden = argument.get_all_aliases().unwrap_or_default();
            let long = long.into_iter().chain(hidden).map(|name| format!("--{name}"));
            long.chain(short).collect::<Vec<_>>()
        });
        own.chain(command.get_subcommands().flat_map(options)).collect()
    }

    #[test]
    fn hints_name_options_that_exist_for_options_that_do_not() {
        let command = crate::args::command();
        let (all, prune) = (options(&command), command.find_subcommand("prune").map(options));
        let prune = prune.expect("there is a command prune");
        for known in FLAG_HINTS {
            for flag in known.flags {
                assert!(!prune.contains(*flag), "prune has {flag}");
            }
            for word in known.hint.split(|c: char| c != '-' && !c.is_alphanumeric()) {
                assert!(!word.starts_with('-') || all.contains(word), "no command has {word}");
            }
        }
    }
}
