//! Which blocks belong on which device?
