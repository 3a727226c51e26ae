//! How does a stage become a program of its own?
