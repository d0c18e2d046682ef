//! Dequantization gives ggml's numbers bit for bit. The cases are made by
//! `testdata/make_quants.py`.

use openwork_llm::Dtype;
use safetensors::SafeTensors;

const CASES: &[u8] = include_bytes!("../../../testdata/quants.safetensors");

#[test]
fn every_type_gives_ggmls_numbers() {
    let cases = SafeTensors::deserialize(CASES).unwrap();
    let types = [
        Dtype::F16,
        Dtype::BF16,
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
        Dtype::Q2K,
        Dtype::Q3K,
        Dtype::IQ2XXS,
        Dtype::IQ3XXS,
        Dtype::IQ4NL,
        Dtype::IQ4XS,
        Dtype::MXFP4,
    ];
    for dtype in types {
        let blocks = cases.tensor(&format!("{dtype}.blocks")).unwrap();
        let numbers = cases.tensor(&format!("{dtype}.numbers")).unwrap();
        let mut found = vec![f32::NAN; numbers.shape()[0]];
        dtype.decode(blocks.data(), &mut found);
        let expected = numbers.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{dtype} {i}: {found}, not {expected}");
        }
    }
}
