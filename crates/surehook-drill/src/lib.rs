//! The parts of the drill, as a library so that tests reach them. Never linked into the product.

pub mod against;
pub mod audit;
pub mod collect;
pub mod faults;
pub mod http;
pub mod load;
pub mod plan;
pub mod records;
pub mod report;
pub mod run;
pub mod scenario;
pub mod stack;
pub mod store;
pub mod timeline;
pub mod verdict;
