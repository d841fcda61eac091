//! The kernel side of the image: Hermit's kernel and the boot stub, compiled for `x86_64-unknown-none`.
#![no_std]

extern crate boot;
extern crate hermit;
extern crate log;
