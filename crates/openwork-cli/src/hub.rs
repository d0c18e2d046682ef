//! Models and texts by their names on the Hugging Face Hub, with progress.

use crate::args::Global;
use crate::failure::Failure;
use crate::progress::Progress;
use openwork_llm::format::format_bytes;
use openwork_llm::hub::{CachedPath, Download, HubError, OnDownload, resolve_model, resolve_text};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        if error.is_input() { Self::input(error) } else { Self::running(error) }
    }
}

impl Global {
    /// MODEL as a path: a name on the Hub becomes the folder or file of its download.
    pub fn model(&self, path: &Path) -> Result<PathBuf, Failure> {
        self.fetch(|offline, on_download| resolve_model(path, offline, on_download))
    }

    /// TEXT as a path.
    pub fn text(&self, path: &Path) -> Result<PathBuf, Failure> {
        self.fetch(|offline, on_download| resolve_text(path, offline, on_download))
    }

    fn fetch(
        &self,
        resolve: impl FnOnce(bool, OnDownload<'_>) -> Result<CachedPath, HubError>,
    ) -> Result<PathBuf, Failure> {
        let mut bar: Option<(String, Progress)> = None;
        let mut show = |Download { file, done, total }: Download<'_>| {
            let title = format!("downloading {file} ({})", format_bytes(total));
            if bar.as_ref().is_none_or(|(shown, _)| shown != file) {
                if let Some((_, ended)) = bar.take() {
                    ended.end();
                }
                bar = Some((file.to_string(), Progress::start(self, &title)));
            }
            if let Some((_, bar)) = &bar {
                bar.say(done as f64 / total.max(1) as f64, &title);
            }
            ControlFlow::Continue(())
        };
        let found = resolve(self.offline, &mut show);
        if let Some((_, ended)) = bar {
            ended.end();
        }
        let found = found?;
        self.note(&found.notes);
        Ok(found.path)
    }
}
