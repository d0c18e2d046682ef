//! A worker of a cluster in a stage that trains the whole model: computes single windows with
//! the weights that the driver sends, and returns their gradients.
//!
//! ```text
//! driver    Student::flat -> weights                  GradientSum::add_flat, in window order
//! worker    receive(weights) -> gradients(window) -> loss and gradients
//! ```

use super::RecoverError;
use super::student::{Gradients, Student};
use super::window::{Distillation, WindowComputer};

/// The memory of a worker. It holds no model, so every call is given the same
/// [`Distillation`].
pub struct WindowWorker {
    student: Student<'static>,
    computer: WindowComputer,
    gradients: Gradients,
}

impl WindowWorker {
    /// A worker for the windows of a stage.
    pub fn new(task: &Distillation<'_>) -> Result<Self, RecoverError> {
        let windows = task.windows.iter().chain(task.held_out);
        if let Some(other) = windows.map(Vec::len).find(|&len| len < 2 || len != task.length()) {
            let (length, why) = (task.length(), "all have the same number, at least 2");
            return Err(RecoverError::Executor(format!(
                "a worker was given windows of {length} and of {other} tokens; {why}"
            )));
        }
        task.model.check_tokens(task.windows)?;
        task.model.check_tokens(task.held_out)?;
        let student = Student::load(task.model, task.options.rounds, &[])?;
        let gradients = Gradients::new(&student);
        // The driver decides which window comes next, so none is computed ahead.
        Ok(Self { student, computer: WindowComputer::new(task, 0)?, gradients })
    }

    /// Receives the weights of a step: those of [`Student::flat`] in the driver.
    pub fn receive(&mut self, weights: &[f32]) -> Result<(), RecoverError> {
        self.student.set_flat(weights)
    }

    /// The loss of a window.
    pub fn loss(&mut self, task: &Distillation<'_>, window: usize) -> Result<f64, RecoverError> {
        check(task, window)?;
        self.computer.loss(task, &self.student, window, None)
    }

    /// The loss of a window, and its gradients as
    /// [`GradientSum::add_flat`](super::GradientSum::add_flat) takes them.
    pub fn gradients(
        &mut self,
        task: &Distillation<'_>,
        window: usize,
    ) -> Result<(f64, Vec<f32>), RecoverError> {
        check(task, window)?;
        let Self { student, computer, gradients } = self;
        let loss = computer.loss(task, student, window, Some(&mut *gradients))?;
        Ok((loss, gradients.flat()))
    }
}

fn check(task: &Distillation<'_>, window: usize) -> Result<(), RecoverError> {
    match task.count() {
        count if window < count => Ok(()),
        count => Err(RecoverError::Executor(format!(
            "a worker was asked for window {window}; the stage has {count}"
        ))),
    }
}
