//! Looks at a consumer's progress again and again, over one connection, so that watching costs next
//! to nothing.

use dapr::dapr::proto::common::v1::InvokeRequest;
use dapr::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use tonic::transport::Channel;

use crate::audit::{ORDER_COUNT, PROGRESS};
use crate::database::{Database, connect};

/// What is looked at.
pub enum Watch {
    /// A session of its own.
    Postgres(tokio_postgres::Client),
    /// A second reader beside the consumer.
    Sqlite(rusqlite::Connection),
    /// The consumer that does nothing but count.
    Count(AppCallbackClient<Channel>),
}

impl Watch {
    /// Connects; a SQLite file must be there already.
    pub async fn open(database: &Database) -> anyhow::Result<Self> {
        match database {
            Database::Postgres(_, port) => Ok(Self::Postgres(connect(*port).await?)),
            Database::Sqlite(path) => {
                let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
                Ok(Self::Sqlite(rusqlite::Connection::open_with_flags(path, flags)?))
            }
        }
    }

    /// Connects to the consumer that does nothing.
    pub async fn count(port: u16) -> anyhow::Result<Self> {
        let address = format!("http://127.0.0.1:{port}");
        Ok(Self::Count(AppCallbackClient::connect(address).await?))
    }

    /// About how many effects there are: one look into an index.
    pub async fn progress(&self) -> anyhow::Result<u64> {
        self.number(PROGRESS).await
    }

    /// How many effects there are.
    pub async fn effects(&self) -> anyhow::Result<u64> {
        self.number(ORDER_COUNT).await
    }

    /// The number that a statement finds.
    pub async fn number(&self, sql: &str) -> anyhow::Result<u64> {
        let number: i64 = match self {
            Self::Postgres(client) => client.query_one(sql, &[]).await?.get(0),
            Self::Sqlite(connection) => connection.query_row(sql, [], |row| row.get(0))?,
            Self::Count(client) => {
                let answer = client.clone().on_invoke(InvokeRequest::default()).await?;
                let data = answer.into_inner().data.unwrap_or_default().value;
                return Ok(String::from_utf8(data)?.parse()?);
            }
        };
        Ok(u64::try_from(number)?)
    }
}
