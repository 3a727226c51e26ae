//! What happens when the stages run?
