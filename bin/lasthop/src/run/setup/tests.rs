use super::*;

fn port(name: &str, path: &str) -> SavedPort {
    SavedPort { name: name.into(), path: path.into(), client: false, tx_batch: None, owner: None }
}

#[test]
fn cpus_must_exist_and_be_allowed() {
    let allowed = CpuList::allowed().unwrap();
    assert_eq!(check_cpus("--cpus", &allowed.to_string(), &allowed), Ok(allowed.clone()));
    let Err(Usage(text)) = check_cpus("--cpus", "1000", &allowed) else { panic!("CPU 1000 is not here") };
    assert!(text.contains("1000") && text.contains(&format!("choose from {allowed}")), "{text}");
    assert!(matches!(check_cpus("--cpus", "x", &allowed), Err(Usage(_))));
}

#[test]
fn names_and_paths_are_used_once() {
    let there = [port("a", "/a"), port("b", "/b")];
    assert_eq!(check_new(there.iter(), &port("c", "/c")), Ok(()));
    for (new, word) in [
        (port("a", "/c"), "another name"),
        (port("c", "/b"), "port b"),
        (port("c", "c"), "absolute"),
        (port("c/", "/c"), "cannot be in"),
        (port("c", &format!("/{}", "x".repeat(107))), "107"),
    ] {
        assert!(check_new(there.iter(), &new).unwrap_err().contains(word), "{new:?}");
    }
    let many: Vec<_> = (0..700).map(|i| port(&format!("{i:060}"), &format!("/{i:060}"))).collect();
    let room = (0..many.len()).find(|&n| check_new(many[..n].iter(), &many[n]).is_err()).unwrap();
    assert!((400..600).contains(&room), "{room}");
}

#[test]
fn the_command_line_and_the_remembered_ports_must_agree() {
    let (twice, once) = reconcile(&[port("a", "/a")], vec![port("a", "/a"), port("b", "/b")]).unwrap();
    assert_eq!((twice, once), (HashSet::from(["a".to_owned()]), vec![port("b", "/b")]));
    let other = SavedPort { owner: Some("root:kvm".parse().unwrap()), ..port("a", "/other") };
    let error = reconcile(&[port("a", "/a")], vec![other]).unwrap_err();
    assert!(error.contains("says /a, and remembered is /other,owner=root:kvm"), "{error}");
    assert!(reconcile(&[port("a", "/a")], vec![port("b", "/a")]).unwrap_err().contains("ports.json"));
    assert!(reconcile(&[], vec![port("a", "/a"), port("a", "/b")]).is_err());
}

#[test]
fn what_stays_is_kept_apart_from_what_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (run, state, link) = (dir.path().join("run"), dir.path().join("state"), dir.path().join("link"));
    std::fs::create_dir(&run).unwrap();
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::symlink(&run, &link).unwrap();
    assert_eq!(check_apart(&run, &state), Ok(()));
    for same in [&run, &link, &state.join("../run")] {
        let Err(Usage(text)) = check_apart(&run, same) else { panic!("{} is the same", same.display()) };
        assert!(text.contains("--run-dir and --state-dir are both"), "{text}");
    }
}

#[test]
fn a_directory_is_locked_once() {
    let dir = tempfile::tempdir().unwrap();
    let held = lock(&dir.path().join("new/dir"), "lock", "--run-dir", 0o755, Instant::now()).unwrap();
    let Err(Failed(text)) = lock(&dir.path().join("new/dir"), "lock", "--run-dir", 0o755, Instant::now()) else {
        panic!("locked twice")
    };
    assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
    drop(held);
    assert!(lock(&dir.path().join("new/dir"), "lock", "--run-dir", 0o755, Instant::now()).is_ok());
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(lock(&dir.path().join("file/dir"), "lock", "--run-dir", 0o755, Instant::now()).is_err());
}

#[test]
fn what_was_told_at_run_time_wins_in_a_device_that_is_started_again() {
    let settings = |text: &str| PortSettings::try_from(text.to_owned()).unwrap();
    let given = ["a", "b", "c"].map(|name| (name.to_owned(), vec![("rate-to".to_owned(), "10M".to_owned())]));
    let saved = || [("a".to_owned(), settings("rate-to=20M"))].into();
    let of = |recalled: Option<&[&str]>| {
        let recalled = recalled.map(|names| names.iter().map(ToString::to_string).collect());
        with_given(saved(), &given, recalled.as_ref())
            .into_iter()
            .map(|(name, set)| format!("{name} {set}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(None), of(Some(&[])));
    assert_eq!(of(None), ["a rate-to=10M", "b rate-to=10M", "c rate-to=10M"]);
    assert_eq!(of(Some(&["a", "b"])), ["a rate-to=20M", "c rate-to=10M"], "b was told nothing any more");
}
