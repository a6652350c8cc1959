//! What the tools of others say about what is served.
