//! How long will a block take on a device?
