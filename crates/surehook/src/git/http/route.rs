//! Which repository and which part of the protocol a URL means. Pure.

use crate::git::command::Service;
use crate::git::name::RepoName;

/// What a path and its query ask for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The repository, if the path names one that could exist.
    pub(super) name: Option<RepoName>,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `info/refs?service=…`.
    Advertise(Service),
    /// `git-upload-pack` or `git-receive-pack`.
    Answer(Service),
    /// The file-by-file protocol of very old clients.
    Dumb,
    /// Git LFS.
    Lfs,
    /// Nothing that belongs to Git.
    Nothing,
}

/// The path is taken as it stands in the URL: no character of a name needs an escape, so an escape is never right.
pub(super) fn parse(path: &str, query: Option<&str>) -> Route {
    let path = path.strip_prefix('/').unwrap_or(path);
    if path.contains("/info/lfs/") || path.ends_with("/info/lfs") || path.ends_with("/objects/batch") {
        return Route { name: None, kind: Kind::Lfs };
    }
    let routed = |name: &str, kind| Route { name: RepoName::parse(name).ok(), kind };
    if let Some(name) = path.strip_suffix("/info/refs") {
        return routed(name, service_asked_for(query).map_or(Kind::Dumb, Kind::Advertise));
    }
    for service in [Service::UploadPack, Service::ReceivePack] {
        if let Some(name) = path.strip_suffix(service.as_str()).and_then(|rest| rest.strip_suffix('/')) {
            return routed(name, Kind::Answer(service));
        }
    }
    if is_dumb(path) {
        return Route { name: None, kind: Kind::Dumb };
    }
    Route { name: None, kind: Kind::Nothing }
}

fn service_asked_for(query: Option<&str>) -> Option<Service> {
    let service = query?.split('&').find_map(|pair| pair.strip_prefix("service="))?;
    [Service::UploadPack, Service::ReceivePack].into_iter().find(|known| known.as_str() == service)
}

fn is_dumb(path: &str) -> bool {
    let Some((_, file)) = path.split_once(".git/") else { return false };
    matches!(file, "HEAD" | "config" | "packed-refs" | "description")
        || ["objects/", "info/", "refs/"].iter().any(|folder| file.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str, query: Option<&str>) -> (Option<String>, Kind) {
        let route = parse(path, query);
        (route.name.map(|name| name.to_string()), route.kind)
    }

    #[test]
    fn urls() {
        use Service::{ReceivePack, UploadPack};
        let upload = Some("service=git-upload-pack");
        for (path, query, name, kind) in [
            ("/a.git/info/refs", upload, Some("a"), Kind::Advertise(UploadPack)),
            ("/a/info/refs", upload, Some("a"), Kind::Advertise(UploadPack)),
            ("/g/a/info/refs", Some("x=1&service=git-receive-pack"), Some("g/a"), Kind::Advertise(ReceivePack)),
            ("/g/a.git/git-receive-pack", None, Some("g/a"), Kind::Answer(ReceivePack)),
            ("/a/git-upload-pack", None, Some("a"), Kind::Answer(UploadPack)),
            ("/a.git/info/refs", None, Some("a"), Kind::Dumb),
            ("/a.git/info/refs", Some("service=git-upload-archive"), Some("a"), Kind::Dumb),
            ("/a.git/HEAD", None, None, Kind::Dumb),
            ("/a.git/objects/info/packs", None, None, Kind::Dumb),
            ("/a.git/info/lfs/objects/batch", None, None, Kind::Lfs),
            ("/a/info/lfs/locks/verify", None, None, Kind::Lfs),
            ("/a.git/objects/batch", None, None, Kind::Lfs),
            ("/a.git", None, None, Kind::Nothing),
            ("/favicon.ico", None, None, Kind::Nothing),
            ("/xgit-upload-pack", None, None, Kind::Nothing),
            ("/../a/info/refs", upload, None, Kind::Advertise(UploadPack)),
            ("/%2e%2e/a/info/refs", upload, None, Kind::Advertise(UploadPack)),
            ("/a%2fb/info/refs", upload, None, Kind::Advertise(UploadPack)),
            ("//a/info/refs", upload, None, Kind::Advertise(UploadPack)),
            ("/api/info/refs", upload, None, Kind::Advertise(UploadPack)),
            ("/info/refs", upload, None, Kind::Nothing),
        ] {
            assert_eq!(parsed(path, query), (name.map(str::to_owned), kind), "{path}");
        }
    }
}
