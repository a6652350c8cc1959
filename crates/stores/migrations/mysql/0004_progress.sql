-- The life of the server in which the present leases were given: who it is, and since when it runs.
create table if not exists {life} (
    id int not null primary key check (id = 1),
    token varchar(400) not null,
    server varchar(300) not null,
    -- Leases with a lower epoch were given in an earlier life.
    first_epoch bigint not null
) engine = innodb default character set utf8mb4 collate utf8mb4_bin;

update {meta} set version = 4 where id = 1 and version < 4;
