//! Language models for openwork: the checkpoints people have, a forward pass
//! that shows the input of every linear, and perplexity as the literature
//! measures it.
