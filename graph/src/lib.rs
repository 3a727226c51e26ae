//! What is the model made of? A trace becomes blocks with shapes and costs.
