//! Models of the two protocols that surehook's promise rests on, checked over every state that small bounds allow.
//!
//! [`announce`]: refs on disk become events, while gits, servers and databases die. [`delivery`]: workers share lanes, while they
//! are killed, paused and cut off. A step of a model bears the name of the function that it mirrors. What is pure in the
//! product is called and not mirrored. Each protection of the code is a field of `Guards`; with one taken away the same model
//! must fail, else it proves nothing. Touches nothing outside of memory; no part of the product.

pub mod announce;
pub mod delivery;
pub mod story;
