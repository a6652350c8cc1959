create table if not exists {audit} (
    id bigint not null auto_increment primary key,
    at datetime(6) not null default (utc_timestamp(6)),
    changed_by varchar(200) character set utf8mb4 collate utf8mb4_bin not null,
    action varchar(50) character set ascii collate ascii_bin not null,
    subject text character set utf8mb4 collate utf8mb4_bin not null,
    -- null while the change runs, or when whoever made it died
    ended_at datetime(6),
    affected bigint not null default 0,
    error text character set utf8mb4 collate utf8mb4_bin
) engine = innodb row_format = dynamic;

update {meta} set version = 3 where id = 1 and version < 3;
