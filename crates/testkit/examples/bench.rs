#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]
use forkd_testkit::{Lab, block_on};
use forkd_engine::TemplateRequest;
use std::sync::Arc;
fn main() {
    block_on(async {
        let mem: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
        let dirty: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
        let n: usize = std::env::args().nth(3).unwrap().parse().unwrap();
        let lab = Lab::new().await;
        let tag: forkd_types::SnapshotTag = "b".parse().unwrap();
        let request = TemplateRequest { tag: tag.clone(), image: "python".into(), memory: forkd_types::ByteCount::from_mib(mem), vcpus: 1, warm: vec![] };
        lab.engine.build_template(request, Arc::new(forkd_engine::NoProgress)).await.unwrap();
        lab.wait_durable(&tag).await;
        let source = lab.one(&tag).await;
        if dirty > 0 { source.eval(&format!("import os\nblob = bytearray(os.urandom(1<<20)) * {dirty}\n")).await; }
        let mut rows: Vec<Vec<f64>> = vec![];
        let mut names = vec![];
        for _ in 0..n {
            let s = source.branch().await;
            let b = s.branch.unwrap();
            let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
            let mut row = vec![ms(b.pause), ms(b.held_by_vmm.unwrap()), ms(b.ready), b.dirty.as_mib(), b.stored.as_mib(), b.faults as f64];
            names = vec!["pause".to_string(), "held".into(), "ready".into(), "dirtyMiB".into(), "storedMiB".into(), "faults".into()];
            for (p, t) in b.phases.iter() { names.push(p.name().into()); row.push(ms(t)); }
            rows.push(row);
            lab.wait_durable(&s.tag).await;
            lab.engine.delete_snapshot(&s.tag, forkd_engine::DeletePolicy::Refuse).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        for (i, name) in names.iter().enumerate() {
            let mut col: Vec<f64> = rows.iter().map(|r| r[i]).collect();
            col.sort_by(|a, b| a.total_cmp(b));
            println!("{name:>18} p50 {:8.2} p90 {:8.2} max {:8.2}   first {:.2} last {:.2}", col[n / 2], col[n * 9 / 10], col[n - 1], rows[0][i], rows[n-1][i]);
        }
    });
}
