//! How long does a training step take under a plan, and where does the time go?
