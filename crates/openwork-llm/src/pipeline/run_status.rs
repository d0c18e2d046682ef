//! The status of a run, read from its folder while it runs or afterwards. Nothing is written,
//! and its lock is not taken.

use super::run_dir::{Fingerprint, LayerDone, RECORD, read_sealed};
use crate::report::{EvaluationRecord, LayerRecord, Record};
use std::fs;
use std::path::{Path, PathBuf};

const PLAN: &str = "openwork/plan.json";
const LOCK: &str = "openwork/lock";
const DENSE: &str = "openwork/layers/dense.json";
/// Maximum number of layers that are read.
const MAX_LAYERS: usize = 1 << 12;

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// A process holds its lock.
    Running,
    /// Not finished, and no process is working on it; `--resume` continues it.
    Stopped,
    /// All files are written.
    Finished,
}

impl RunState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Finished => "finished",
        }
    }
}

/// The status of a run, as read from its folder.
#[derive(Clone, Debug)]
pub struct RunStatus {
    /// Whether it is running, stopped or finished.
    pub state: RunState,
    /// The options that it was started with; `None` in the folder of an earlier version.
    pub plan: Option<Fingerprint>,
    /// The record, if it is finished.
    pub record: Option<Record>,
    /// The layers that are done, in order.
    pub layers: Vec<LayerRecord>,
    /// The number of layers, if known.
    pub all_layers: Option<usize>,
    /// Perplexities in the order of measurement.
    pub evaluations: Vec<EvaluationRecord>,
    /// Seconds since the start, at the end of the last layer.
    pub elapsed: f64,
}

impl RunStatus {
    /// Reads the folder of a run; `None` if it is not one, or its files are damaged.
    pub fn read(folder: &Path) -> Option<Self> {
        let record = Record::read(folder).ok().filter(|_| folder.join(RECORD).exists());
        let plan: Option<Fingerprint> = read_sealed(&folder.join(PLAN), "").ok().flatten();
        if let Some(record) = record {
            return Some(Self {
                state: RunState::Finished,
                plan,
                all_layers: Some(record.layers.len()),
                layers: record.layers.clone(),
                evaluations: record.evaluations.clone(),
                elapsed: record.totals.seconds,
                record: Some(record),
            });
        }
        let plan = plan?;
        // One shard for each layer, and one for everything else.
        let shards = plan.files.iter().filter(|name| name.ends_with(".safetensors")).count();
        let mut evaluations: Vec<EvaluationRecord> =
            read_sealed(&folder.join(DENSE), "").ok().flatten().into_iter().collect();
        let (mut layers, mut elapsed) = (Vec::new(), 0.0);
        for layer in 0..MAX_LAYERS {
            let path = folder.join(format!("openwork/layers/{layer:05}.json"));
            let Some(done) = read_sealed::<LayerDone>(&path, "").ok().flatten() else { break };
            evaluations.extend(done.evaluation);
            elapsed = done.elapsed;
            layers.push(done.record);
        }
        let running = is_locked(&folder.join(LOCK));
        Some(Self {
            state: if running { RunState::Running } else { RunState::Stopped },
            plan: Some(plan),
            record: None,
            layers,
            all_layers: shards.checked_sub(1),
            evaluations,
            elapsed,
        })
    }
}

/// The folders of runs at or below a folder, sorted; at most `most`, at most `depth` folders
/// down. Symbolic links are not followed.
pub fn find_runs(root: &Path, depth: usize, most: usize) -> Vec<PathBuf> {
    let (mut found, mut level) = (Vec::new(), vec![root.to_path_buf()]);
    // Folders of source trees and caches can be large; those of runs are near the top.
    const MAX_FOLDERS: usize = 4096;
    let mut seen = 0;
    for down in 0..=depth {
        let mut next = Vec::new();
        for folder in level {
            seen += 1;
            if found.len() >= most || seen > MAX_FOLDERS {
                break;
            }
            let run = folder.join("openwork");
            if !run.is_symlink() && (folder.join(PLAN).is_file() || folder.join(RECORD).is_file()) {
                found.push(folder);
                continue;
            }
            if down == depth {
                continue;
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let shown =
                folders.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
            next.extend(shown.map(|entry| entry.path()));
        }
        level = next;
    }
    found.sort();
    found
}

/// Whether a process holds the lock of a run. Trying to take it could make a run that starts
/// at this moment fail, so the system's list of locks is read.
#[cfg(target_os = "linux")]
fn is_locked(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(inode) = fs::metadata(path).map(|data| data.ino().to_string()) else { return false };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    // `1: FLOCK ADVISORY WRITE 708 00:13:1234 0 EOF`; the device is that of the file system
    // only where it has no subvolumes, so inodes alone are compared.
    locks.lines().any(|line| {
        let device = line.split_whitespace().find(|word| word.matches(':').count() == 2);
        line.contains("FLOCK") && device.and_then(|word| word.rsplit(':').next()) == Some(&inode)
    })
}

/// Elsewhere a run that wrote something in the last minutes is taken to be running.
#[cfg(not(target_os = "linux"))]
fn is_locked(path: &Path) -> bool {
    const RECENT: std::time::Duration = std::time::Duration::from_secs(300);
    let Some(layers) = path.parent().map(|run| run.join("layers")) else { return false };
    let changed = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let times = [changed(path), changed(&layers)];
    times.into_iter().flatten().any(|time| time.elapsed().is_ok_and(|ago| ago < RECENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::pipeline::{
        Calibration, Event, Job, LocalExecutor, Observer, Passes, PreparedRun, Recipe, Sampling,
        Start, TensorFilter,
    };
    use crate::{Checkpoint, Dtype, demo};
    use std::sync::Mutex;

    /// Reads the folder after each layer, and cancels after the second.
    struct Reader<'a> {
        folder: &'a Path,
        seen: Mutex<Vec<RunStatus>>,
        most: usize,
    }

    impl Observer for Reader<'_> {
        fn on_event(&self, event: Event<'_>) {
            if let Event::Layer(_) = event {
                self.seen.lock().unwrap().extend(RunStatus::read(self.folder));
            }
        }

        fn cancelled(&self) -> bool {
            self.seen.lock().unwrap().len() >= self.most
        }
    }

    fn run(folder: &Path, most: usize, start: Start) -> Vec<RunStatus> {
        let source = Checkpoint::open("demo".as_ref()).unwrap().rounded(Dtype::BF16);
        let model = Model::open(&source).unwrap();
        let tokenizer = source.tokenizer().unwrap();
        let how = Sampling { samples: 2, length: 16, single_tokens: Some(0), seed: 0 };
        let calibration = Calibration::draw(&tokenizer, ("demo", demo::CALIBRATION), how).unwrap();
        let recipe = Recipe::new("2:4", "magnitude");
        let filter = TensorFilter::default();
        let passes = Passes::new(&recipe, &filter, model.config(), false).unwrap();
        let (dtype, evaluation) = (Dtype::BF16, None);
        let job = Job {
            calibration,
            evaluation,
            sentences: None,
            tasks: Vec::new(),
            dtype,
            state_memory_limit: None,
            recovery: None,
        };
        let observer = Reader { folder, seen: Mutex::default(), most };
        let run = PreparedRun::new(model, job, passes, folder, start);
        let _ = run.run(&observer, &mut LocalExecutor::default());
        observer.seen.into_inner().unwrap()
    }

    #[test]
    fn a_run_is_seen_while_it_runs_stops_and_ends() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("deep/run");
        let seen = run(&folder, 2, Start::Fresh);
        // A layer is reported before it is written.
        assert_eq!(seen.iter().map(|s| s.layers.len()).collect::<Vec<_>>(), [0, 1]);
        assert!(seen.iter().all(|status| status.state == RunState::Running));
        let before: Vec<_> = fs::read_dir(folder.join("openwork")).unwrap().flatten().collect();
        let stopped = RunStatus::read(&folder).unwrap();
        assert_eq!((stopped.state, stopped.layers.len()), (RunState::Stopped, 2));
        let after = fs::read_dir(folder.join("openwork")).unwrap().count();
        assert_eq!(before.len(), after, "reading writes nothing");
        assert_eq!(find_runs(root.path(), 3, 10), std::slice::from_ref(&folder));
        assert!(find_runs(root.path(), 1, 10).is_empty());

        run(&folder, usize::MAX, Start::Resume);
        let finished = RunStatus::read(&folder).unwrap();
        assert_eq!(finished.state, RunState::Finished);
        assert_eq!(finished.all_layers, stopped.all_layers);
        assert_eq!(finished.layers.len(), finished.all_layers.unwrap());
    }

    #[test]
    fn a_folder_without_a_run_has_no_status() {
        let folder = tempfile::tempdir().unwrap();
        assert!(RunStatus::read(folder.path()).is_none());
        fs::create_dir(folder.path().join("openwork")).unwrap();
        fs::write(folder.path().join(PLAN), "damaged").unwrap();
        assert!(RunStatus::read(folder.path()).is_none());
    }
}
