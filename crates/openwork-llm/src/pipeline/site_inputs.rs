//! Captures the inputs of one site of a model outside a run, to try patterns on a layer.

use super::stages::{Chunk, Sums, merge};
use super::{Calibration, PipelineError};
use crate::model::{Model, NoTap, Site, Storage};
use openwork::hessian::Hessian;
use openwork::prune::Monitor;

/// X'X of the inputs of a site of layer `layer` of the dense model, over all calibration
/// windows. The same sums as those of a run, if the layers before it stay dense.
pub fn site_hessian(
    model: &Model<'_>,
    calibration: &Calibration,
    (layer, site): (usize, Site),
    monitor: &dyn Monitor,
) -> Result<Hessian, PipelineError> {
    let mut chunks = Vec::new();
    let mut first = 0;
    for windows in calibration.chunks() {
        let hidden = model.embed(windows)?;
        let tokens = hidden.states().rows();
        chunks.push(Chunk::new(first, hidden));
        first += tokens;
    }
    let count = chunks.len();
    let steps = ((layer + 1) * count) as f64;
    let check = |done: usize| {
        if monitor.cancelled() {
            return Err(PipelineError::Stopped);
        }
        monitor.progress(done as f64 / steps);
        Ok(())
    };
    for index in 0..layer {
        let dense = model.layer(index, Storage::F32)?;
        for (i, chunk) in chunks.iter_mut().enumerate() {
            check(index * count + i)?;
            dense.forward(&mut chunk.hidden, &mut NoTap);
        }
    }
    let dense = model.layer(layer, Storage::F32)?;
    let mut total: Sums = Vec::new();
    for (i, chunk) in chunks.iter_mut().enumerate() {
        check(layer * count + i)?;
        merge(&mut total, chunk.begin(&dense, &[site])?)?;
    }
    let wrong =
        |error| PipelineError::Inputs { tensor: format!("model.layers.{layer}, {}", site), error };
    let sum = total.into_iter().find(|(found, _)| *found == site).map(|(_, sum)| sum);
    let sum = sum.ok_or_else(|| PipelineError::Plan("there are no calibration windows".into()))?;
    sum.finish().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;
    use crate::demo;
    use crate::pipeline::{Capture, Executor, Job, LocalExecutor, Sampling};

    /// The sums of a run whose layers stay dense.
    #[test]
    fn the_hessian_is_that_of_a_run() {
        let source = Checkpoint::open("demo".as_ref()).unwrap();
        let model = Model::open(&source).unwrap();
        let tokenizer = source.tokenizer().unwrap();
        let how = Sampling { samples: 3, length: 32, single_tokens: Some(4), seed: 0 };
        let calibration = Calibration::draw(&tokenizer, ("demo", demo::CALIBRATION), how).unwrap();
        let job = Job {
            calibration: calibration.clone(),
            evaluation: None,
            sentences: None,
            tasks: Vec::new(),
            dtype: crate::Dtype::BF16,
            state_memory_limit: None,
            recovery: None,
        };
        let mut executor = LocalExecutor::default();
        executor.start(&job, &model, ".".as_ref()).unwrap();
        for index in 0..2 {
            let layer = model.layer(index, Storage::F32).unwrap();
            let capture = Capture { begin: true, attend: false, sites: &layer.info().sites() };
            let sums = executor.capture(&layer, capture, &()).unwrap();
            for (site, sum) in sums {
                let found = site_hessian(&model, &calibration, (index, site), &()).unwrap();
                let expected = sum.finish().unwrap();
                assert_eq!(found.matrix().data(), expected.matrix().data(), "{index} {site:?}");
            }
            executor.advance(&layer, crate::pipeline::Stage::Advance, &()).unwrap();
        }
    }
}
