#![cfg(feature="postgres")]
#![allow(clippy::pedantic, missing_docs)]
use std::time::Duration;
use posthaste_core::{*, store::*};
use posthaste_stores::{*, postgres::PostgresStore};
use sqlx::Postgres;
use uuid::Uuid;

fn relay(n:&str)->Relay{ Relay{name:n.into(),instance:Uuid::now_v7(),ordering:RelayOrdering::PerKey,lease:Duration::from_secs(5)} }

#[tokio::test]
async fn all() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES").unwrap();
    let name: TableName = format!("smoke_{:08x}", fastrand::u32(..)).parse().unwrap();
    let tables = Tables::new(name);
    let s = PostgresStore::connect(&url, tables.clone(), &Options::default()).await.unwrap();
    println!("{}", s.check().await.unwrap_err());
    assert_eq!(s.migrate(None).await.unwrap(), [1]);
    assert!(s.migrate(Some(64)).await.unwrap().is_empty());
    println!("{}", s.migrate(Some(32)).await.unwrap_err());
    let n = s.check().await.unwrap();
    println!("{}", s.migrations_sql(Some(7)).unwrap().len());
    let mut tx = s.pool().begin().await.unwrap();
    let e = |t:&str,id:&str| Event::builder(t).aggregate("Order", id).tenant("acme").header("a","b").raw_json(format!("{{\"x\": \"{}\"}}", "é")).build().unwrap();
    let evs: Vec<Event> = (0..10).map(|i| if i%5==0 {Event::builder("G").unordered().raw_json("1").build().unwrap()} else if i==3 {Event::builder("K").ordering_key("mine").raw_json("1").build().unwrap()} else {e("T", &(i%3).to_string())}).collect();
    let got = Postgres::enqueue(&mut tx, &tables, &evs).await.unwrap();
    println!("{got:?}");
    let again = Postgres::enqueue(&mut tx, &tables, &[evs[0].clone(), evs[0].clone(), e("N","9")]).await.unwrap();
    println!("{again:?}");
    let one = Postgres::enqueue(&mut tx, &tables, &[evs[1].clone()]).await.unwrap();
    println!("{one:?} {}", Postgres::in_transaction(&mut tx));
    let bad = Event::builder("Other").id(evs[1].id()).aggregate("Order","1").tenant("acme").raw_json("1").build().unwrap();
    println!("{}", Postgres::enqueue(&mut tx, &tables, &[bad]).await.unwrap_err());
    tx.commit().await.unwrap();
    let r = relay("a");
    let c = s.heartbeat(&r, 0).await.unwrap();
    println!("{c:?}");
    let all: Vec<u16> = (0..n).collect();
    let leases = s.acquire(&r, &all).await.unwrap();
    assert_eq!(leases.len(), 64);
    println!("{:?}", leases[0]);
    assert!(s.acquire(&relay("b"), &all).await.unwrap().is_empty());
    let held: Vec<Held> = leases.iter().map(|l| l.held).collect();
    let p = s.read_ahead(&all, &leases[0].mark, 5).await.unwrap();
    assert_eq!(p.rows.len(), 5); assert!(!p.caught_up);
    let p2 = s.read_ahead(&all[..63], &p.position, 500).await.unwrap();
    println!("{:?} {:?}", p2.rows.len(), p2.position);
    for row in p.rows.iter().chain(&p2.rows) { let env=row.content.as_ref().unwrap(); assert_eq!(row.shard, posthaste_core::key::shard_of(env.event.ordering_key().as_deref(), env.event.id(), 64)); assert_eq!(row.key, env.event.key()); if let Some(x)=evs.iter().find(|x|x.id()==env.event.id()) { assert_eq!(x.payload(), env.event.payload()); assert_eq!(x.headers(), env.event.headers()); assert_eq!(x.occurred_at().as_microsecond(), env.event.occurred_at().as_microsecond()); } }
    let late = s.read_late(&all, &p2.position).await.unwrap();
    println!("late {} {:?}", late.rows.len(), late.position);
    println!("{:?}", s.read_due(&all, 10).await.unwrap());
    let hot = s.read_hot(&got.iter().map(|g|g.sequence).collect::<Vec<_>>()).await.unwrap();
    println!("{:?}", hot.iter().map(|h| (h.row.sequence, h.previous)).collect::<Vec<_>>());
    let k = p.rows[1].key.unwrap();
    let st = |i:usize, attempts, verdict| Settlement{sequence:p.rows[i].sequence, shard:p.rows[i].shard, attempts, verdict};
    let fence = Fence::Shards{owner:r.owner(), held:held.clone()};
    let rep = s.settle(&fence, &[st(0,0,Verdict::Sent), st(1,1,Verdict::Retry{after:Duration::from_millis(50),error:"bo\0om".into(),destination:"d".into(),key:Some(k),replay:false}),
        st(2,3,Verdict::Dead{error:"x".into(),destination:"d".into(),parked:p.rows[2].key}), st(4,0,Verdict::Held{destination:"d".into(),key:k}), st(3,1,Verdict::Suspect{destination:"d".into(),key:None})], true).await.unwrap();
    println!("{rep:?}");
    println!("{:?}", s.read_blocked(&all).await.unwrap());
    println!("{:?}", s.read_held("d", k, 10).await.unwrap().len());
    println!("{:?}", s.read_due(&all, 10).await.unwrap());
    println!("{:?} {:?} {:?}", s.counts().await.unwrap(), s.counts_by_tenant().await.unwrap(), s.oldest_pending().await.unwrap());
    println!("{:?}", s.attempts(p.rows[1].sequence).await.unwrap());
    for st in Status::ALL { let pg = s.events(&Filter{status:Some(st),..Default::default()}, None, 3).await.unwrap(); println!("{st} {:?} {:?}", pg.events.iter().map(|e|(e.sequence,e.status,e.not_before)).collect::<Vec<_>>(), pg.next); }
    let pg = s.events(&Filter{aggregate_id:Some("1".into()),..Default::default()}, None, 3).await.unwrap(); println!("{:?} {:?}", pg.events.len(), pg.next);
    println!("{}", s.discard(&Selection::One(evs[0].id())).await.unwrap_err());
    println!("{}", s.replay(&Selection::One(evs[1].id())).await.unwrap_err());
    println!("{}", s.replay(&Selection::One(Uuid::nil())).await.unwrap_err());
    println!("disc {}", s.discard(&Selection::One(evs[1].id())).await.unwrap());
    println!("held freed: {:?}", s.read_due(&all, 10).await.unwrap().rows.iter().map(|r|(r.sequence,r.wait)).collect::<Vec<_>>());
    println!("replay {}", s.replay(&Selection::Matching{filter:Filter{status:Some(Status::Dead),..Default::default()},limit:10}).await.unwrap());
    println!("replay {}", s.replay(&Selection::Matching{filter:Filter{status:Some(Status::Sent),..Default::default()},limit:10}).await.unwrap());
    println!("disc {}", s.discard(&Selection::Matching{filter:Filter{event_type:Some("N".into()),..Default::default()},limit:10}).await.unwrap());
    println!("renew {}", s.renew(&r, &held, &late.position).await.unwrap().len());
    println!("{:?}", s.settle(&fence, &[st(0,0,Verdict::Sent)], false).await.unwrap());
    s.release(&r, &held, &late.position).await.unwrap();
    println!("{:?}", s.settle(&fence, &[st(0,0,Verdict::Sent)], true).await.unwrap().refused);
    println!("{:?}", s.acquire(&relay("b"), &[3]).await.unwrap());
    println!("{:?}", s.purge(Duration::ZERO, Some(Duration::ZERO), 3, None).await.unwrap());
    let lease = RowLease{token:"a/x#1".into()};
    let cl = s.claim(&r, &lease, &Position::default(), 4).await.unwrap();
    println!("{:?} {:?}", cl.rows.iter().map(|r|r.sequence).collect::<Vec<_>>(), cl.position);
    let l2 = RowLease{token:"a/x#2".into()};
    let cl2 = s.claim_late(&r, &l2, &cl.position, 4).await.unwrap();
    println!("{:?} {:?}", cl2.rows.iter().map(|r|r.sequence).collect::<Vec<_>>(), cl2.position);
    s.renew_rows(&r, &[lease.clone()]).await.unwrap();
    println!("{:?}", s.claim_expired(&r, &l2).await.unwrap().is_some());
    println!("{:?}", s.counts().await.unwrap());
    let set: Vec<Settlement> = cl.rows.iter().map(|r| Settlement{sequence:r.sequence,shard:r.shard,attempts:1,verdict:Verdict::Retry{after:Duration::ZERO,error:"e".into(),destination:"d".into(),key:None,replay:false}}).collect();
    println!("{:?}", s.settle(&Fence::Rows(l2.clone()), &set, true).await.unwrap());
    println!("{:?}", s.settle(&Fence::Rows(lease.clone()), &set, true).await.unwrap());
    println!("{:?}", s.settle(&Fence::Rows(lease.clone()), &set, true).await.unwrap());
    println!("{:?}", s.claim_hot(&r, &l2, &got.iter().map(|g|g.sequence).collect::<Vec<_>>()).await.unwrap().len());
    s.unclaim(&l2, &[1,2,3]).await.unwrap();
    println!("{:?}", s.shards().await.unwrap()[3]);
    println!("{:?} {}", s.relays().await.unwrap(), s.count_sent().await.unwrap());
    let mut l = s.listen().await.unwrap().unwrap();
    s.notify().await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), l.wait()).await.unwrap().unwrap();
    s.retire(&r).await.unwrap();
    for t in ["{attempts}", "{controls}", "{relays}", "{shards}", "{meta}", "{events}"] { sqlx::raw_sql(sqlx::AssertSqlSafe(tables.fill(&format!("drop table {t}")))).execute(s.pool()).await.unwrap(); }
}
