//! The flags of a run, made from the library's list of options.

use clap::builder::{PathBufValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use openwork_llm::pipeline::{OPTIONS, OptionKind, OptionValue, RunOption};
use std::path::PathBuf;

/// The options that were given, by name.
pub type Given = Vec<(&'static str, OptionValue)>;

/// The options of `openwork prune`.
#[derive(Clone, Debug)]
pub struct Options(pub Given);

/// The options of `openwork recover`: those that are not about pruning.
#[derive(Clone, Debug)]
pub struct RecoverOptions(pub Given);

/// Which options `openwork recover` takes.
fn recovers(option: &RunOption) -> bool {
    let about_pruning = ["spec", "method", "recipe", "include", "exclude", "remove"];
    !about_pruning.contains(&option.name) && !["sequential", "single_tokens"].contains(&option.name)
}

/// Makes a type take the options that a function accepts.
macro_rules! take_options {
    ($type:ident, $accepts:expr) => {
        impl clap::Args for $type {
            fn augment_args(command: Command) -> Command {
                OPTIONS.iter().filter($accepts).fold(command, |command, o| command.arg(arg(o)))
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl clap::FromArgMatches for $type {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                let given =
                    |option: &'static RunOption| Some((option.name, value(option, matches)?));
                Ok(Self(OPTIONS.iter().filter($accepts).filter_map(given).collect()))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

take_options!(Options, |_: &&RunOption| true);
take_options!(RecoverOptions, |option: &&RunOption| recovers(option));

fn arg(option: &'static RunOption) -> Arg {
    let arg = Arg::new(option.name)
        .long(option.flag().leak() as &str)
        .help(option.description())
        .help_heading(option.group)
        .aliases(option.aliases.iter().copied())
        .required(option.required);
    let arg = match option.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    let parser: ValueParser = match option.kind {
        OptionKind::Flag if option.value.is_empty() => {
            return arg.action(ArgAction::SetTrue);
        }
        OptionKind::Flag => {
            let arg = arg.value_name(option.value).value_parser(value_parser!(String));
            return arg.num_args(0..=1).default_missing_value("on");
        }
        OptionKind::Count => value_parser!(u64).into(),
        OptionKind::Path => PathBufValueParser::new().into(),
        OptionKind::Paths => {
            let arg = arg.value_name(option.value).action(ArgAction::Append);
            return arg.value_parser(PathBufValueParser::new());
        }
        OptionKind::Text | OptionKind::Bytes => value_parser!(String),
    };
    arg.value_name(option.value).value_parser(parser)
}

fn value(option: &RunOption, matches: &ArgMatches) -> Option<OptionValue> {
    let name = option.name;
    match option.kind {
        OptionKind::Flag if option.value.is_empty() => {
            matches.get_flag(name).then_some(OptionValue::Flag(true))
        }
        OptionKind::Count => matches.get_one(name).copied().map(OptionValue::Count),
        OptionKind::Path => {
            let path: &PathBuf = matches.get_one(name)?;
            Some(OptionValue::Text(path.into()))
        }
        OptionKind::Paths => {
            let paths = matches.get_many::<PathBuf>(name)?;
            Some(OptionValue::Texts(paths.map(Into::into).collect()))
        }
        OptionKind::Flag | OptionKind::Text | OptionKind::Bytes => {
            let text: &String = matches.get_one(name)?;
            Some(OptionValue::Text(text.into()))
        }
    }
}
