//! Mirrors over the API: named before their ports are there, in force when the call returns.

use super::*;

fn copies(to: u32, outputs: &[u32]) -> Vec<Action> {
    [vec![Action::Copy(PortId(to))], super::to(outputs)].concat()
}

#[test]
fn a_mirror_is_in_force_when_the_call_returns() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2", "vm3"]);
    fake.attach();
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.flows.len() == 1 && f.resumed.len() == 1);
    let add = async |api: &mut Connection, name: &str, from: &[&str], to: &str| {
        api.mirror_add(name, from, to, "from-guest", None, None).await.unwrap()
    };
    let made = client(&mut fake, async move |api| add(api, "tap", &["vm1", "vm9"], "vm3").await).unwrap();
    assert_eq!(made.mirrors[0].to_come, ["vm9"]);
    assert!(made.mirrors[0].note.as_ref().is_some_and(|note| note.contains("there is no port vm9 yet")), "{made:?}");
    assert!(fake.flows.is_empty(), "no flow that copies nothing is left");
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 2 && f.flows.len() == 1);
    assert_eq!(fake.resumed[1].1, copies(3, &[2]));
    // A port that a mirror has named comes, and is mirrored from its first packet on.
    (0..6).for_each(|n| fake.add_ports(&[&format!("vm{}", n + 4)]));
    // The supervisor's word of it and the switch's come by channels of their own: until both are there nothing passes.
    let mut answers = 2;
    while answers == 2 || fake.resumed[answers - 1].1.is_empty() {
        fake.packet(&frame(9, 200), 9);
        answers += 1;
        fake.serve_until(|f| f.resumed.len() == answers);
    }
    assert_eq!(fake.resumed[answers - 1].1, copies(3, &[1, 2, 4, 5, 6, 7, 8]));
    let listed = client(&mut fake, async |api| api.mirror_list().await.unwrap()).unwrap();
    let mirror = &listed.mirrors[..];
    assert_eq!((mirror.len(), mirror[0].name.as_str(), &mirror[0].note), (1, "tap", &None));
    let flows = client(&mut fake, async |api| {
        let mut pages = Box::pin(api.flow_list().await.unwrap());
        pages.next().await.unwrap().unwrap().unwrap()
    });
    assert!(flows.flows.iter().all(|flow| flow.actions[0] == "copy(vm3)"), "{flows:?}");
    assert!(flows.flows.iter().all(|flow| !flow.outputs.contains(&"vm3".to_owned())), "a copy is no output");
    client(&mut fake, async |api| api.mirror_del("tap").await.unwrap()).unwrap();
    assert!(fake.flows.is_empty(), "no flow that copies is left");
    // Of one packet in four.
    let some =
        async |api: &mut Connection| api.mirror_add("tap", &["vm1"], "vm3", "both", Some(4), None).await.unwrap();
    assert_eq!(client(&mut fake, some).unwrap().mirrors[0].sample, 4);
    answers += 1;
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == answers);
    assert_eq!(
        fake.resumed[answers - 1].1,
        [vec![Action::Sample(u32::MAX / 4, 1)], copies(3, &[2, 4, 5, 6, 7, 8, 9])].concat()
    );
}

#[test]
fn what_is_wrong_is_said() {
    let (_control, mut fake) = Control::start();
    fake.add_ports(&["vm1", "vm2"]);
    fake.attach();
    let refused = |error| match error {
        Err(ApiError::MirrorRefused { message }) => message,
        other => panic!("{other:?}"),
    };
    let add = async |api: &mut Connection, name: &str, to: &str, direction: &str| {
        api.mirror_add(name, &["vm1"], to, direction, None, None).await.unwrap()
    };
    let error = refused(client(&mut fake, async move |api| add(api, "tap", "vm2", "in").await));
    assert!(error.contains("use from-guest, to-guest or both"), "{error}");
    let error = refused(client(&mut fake, async move |api| add(api, "refused", "vm2", "both").await));
    assert_eq!(error, "choose another name");
    let error = refused(client(&mut fake, async |api| api.mirror_del("tap").await.unwrap()));
    assert!(error.contains("there is no mirror tap"), "{error}");
    // A destination that is not there yet, and one that turns out to be an uplink.
    let made = client(&mut fake, async move |api| add(api, "tap", "later", "both").await).unwrap();
    assert!(made.mirrors[0].note.as_ref().is_some_and(|note| note.contains("until there is a port later")), "{made:?}");
    client(&mut fake, async move |api| add(api, "tap", "vm2", "both").await).unwrap();
    fake.supervisor.send(&SupervisorToControl::Uplinks(vec![(PortId(2), None)]), None).unwrap();
    fake.packet(&frame(1, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 1);
    let listed = client(&mut fake, async |api| api.mirror_list().await.unwrap()).unwrap();
    assert!(listed.mirrors[0].note.as_ref().is_some_and(|note| note.contains("vm2 is an uplink")), "{listed:?}");
    fake.packet(&frame(3, 2), 1);
    fake.serve_until(|f| f.resumed.len() == 2);
    assert_eq!(fake.resumed[1].1, super::to(&[2]), "an uplink goes on as one");
}
