//! Programs with the device library, compiled for the host and for the DPA, alone and in the lab.

mod command;
mod common;
mod demo;
mod examples;
mod judges;
mod library;
mod survive;
